"""Basic authentication against bcrypt hashes, off the event loop."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.answer import Receive, unless_gone

logger = logging.getLogger(__name__)

_REMEMBERED = 256
_TURNS = 3
"""One of so many is the newest's."""
_BCRYPT_BYTES = 72

Users = Mapping[bytes, bytes]
"""Hashes by name."""


class Credentials(NamedTuple):
    """What a client says it is."""

    user: bytes
    password: bytes


def credentials(authorization: str) -> Credentials | None:
    """Reads an Authorization header; None if it is no basic authentication."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(token.strip().encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    user, colon, password = decoded.partition(b":")
    return Credentials(user, password) if colon else None


def require_bcrypt() -> None:
    """Raises SettingsError if the module is missing."""
    try:
        import bcrypt  # noqa: F401, PLC0415 - comes with an extra
    except ImportError:
        raise SettingsError(
            "bcrypt is missing: pip install 'gpu-bottleneck-exporter[web-config]'"
        ) from None


class Check:
    """A password that waits to be checked, for all from one address who sent it."""

    def __init__(self, address: str, mark: bytes, work: Callable[[], bool]) -> None:
        self.address = address
        self.mark = mark
        self.work = work
        self.waiting: set[asyncio.Future[bool]] = set()

    def tell(self, result: bool | None) -> None:  # noqa: FBT001 - what a future is told
        """Hands the result to those who wait; None: there will be none."""
        for future in self.waiting:
            if not future.done() and result is None:
                future.cancel()
            elif not future.done():
                future.set_result(bool(result))


class Queue:
    """Who is next: addresses by turns, of each the oldest twice and the newest once.

    So whoever sends many passwords keeps those of his own address waiting only. Even there
    a newcomer has a chance to be next, and is after one and a half rounds at the latest.
    """

    def __init__(self) -> None:
        self._checks: dict[str, dict[bytes, Check]] = {}
        self._turn = 0

    def find(self, address: str, mark: bytes) -> Check | None:
        """The same password from the same address, if it waits already."""
        return self._checks.get(address, {}).get(mark)

    def put(self, check: Check) -> None:
        """Lets a check wait."""
        self._checks.setdefault(check.address, {})[check.mark] = check

    def drop(self, check: Check) -> None:
        """Forgets a check that nobody waits for; does nothing if it was taken."""
        of_one = self._checks.get(check.address, {})
        if of_one.get(check.mark) is check:
            del of_one[check.mark]
            if not of_one:
                del self._checks[check.address]

    def take(self) -> Check | None:
        """The next check; None if there is none."""
        if not self._checks:
            return None
        address = next(iter(self._checks))
        of_one = self._checks.pop(address)
        self._turn += 1
        newest = self._turn % _TURNS == 1
        check = of_one.pop(next(reversed(of_one) if newest else iter(of_one)))
        if of_one:
            self._checks[address] = of_one  # behind the others
        return check


class Logins:
    """Checks passwords, one at a time, and remembers those that were right.

    bcrypt is slow by design; the next scrapes with the same password cost a keyed hash.
    Nobody is refused for want of time: a client that waits sends no more passwords.
    """

    def __init__(self) -> None:
        self._checks = ThreadPoolExecutor(1, "web-login")
        self._secret = os.urandom(32)
        self._right: dict[bytes, None] = {}
        self._queue = Queue()
        self._running: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Ends the thread, after the check that it is at; called on the event loop."""
        if self._running is not None:
            self._running.cancel()
        self._checks.shutdown(wait=False, cancel_futures=True)

    async def right(self, users: Users, said: Credentials, address: str, receive: Receive) -> bool:
        """Whether the user is one of `users` and the password is theirs.

        What is wrong costs what the costliest hash does, whether there is such a user or
        not and whatever their own hash costs, so that names cannot be found out by timing.

        Args:
            users: Who may come; not empty.
            said: What the client says.
            address: Where it comes from: passwords from one wait for each other.
            receive: Tells when the client goes away.

        Raises:
            asyncio.CancelledError: If the client went away or the server is stopping.
        """
        known = said.user in users
        costliest = max(users.values(), key=_cost)
        hashed = users[said.user] if known else costliest
        mark = self._mark(said, hashed)
        if known and mark in self._right:
            return True
        check = self._queue.find(address, mark)
        if check is None:
            check = Check(address, mark, partial(_fits, said.password, hashed, _cost(costliest)))
            self._queue.put(check)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        fits = await self._result(check, receive)
        if known and fits:
            self._remember(mark)
        return known and fits

    async def _result(self, check: Check, receive: Receive) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        check.waiting.add(answer)
        try:
            return await unless_gone(receive, answer)
        finally:
            check.waiting.discard(answer)
            if not check.waiting:
                self._queue.drop(check)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (check := self._queue.take()) is not None:
                result: bool | None = None
                try:
                    result = await loop.run_in_executor(self._checks, check.work)
                except Exception:  # else all others would wait for ever
                    logger.exception("A password could not be checked.")
                finally:
                    check.tell(result)
        finally:
            self._running = None

    def _mark(self, said: Credentials, hashed: bytes) -> bytes:
        """Stands for a password in memory; worthless without the secret of this process."""
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in (said.user, hashed, said.password):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _remember(self, mark: bytes) -> None:
        if len(self._right) >= _REMEMBERED:
            del self._right[next(iter(self._right))]
        self._right[mark] = None


def _cost(hashed: bytes) -> int:
    """In powers of two."""
    return int(hashed[4:6])


def _fits(password: bytes, hashed: bytes, costliest: int) -> bool:
    """Whether it is the password; if it is not, after the work of the costliest hash."""
    if _checked(password, hashed):
        return True
    # 2^c + 2^c + 2^(c+1) + … + 2^(m-1) = 2^m
    for cost in range(_cost(hashed), costliest):
        _checked(password, b"%b%02d%b" % (hashed[:4], cost, hashed[6:]))
    return False


def _checked(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # noqa: PLC0415 - comes with an extra

    try:
        # htpasswd and Go hash the first 72 bytes; the module refuses more.
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed)
    except ValueError:
        return False
