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
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.answer import Receive, unless_gone

logger = logging.getLogger(__name__)

_REMEMBERED = 256
"""Correct passwords that are recognised without bcrypt; the oldest goes first."""
_TURNS = 3
"""One check in three is for an address's newest password.

With one in two, wrong passwords that came again at once kept ahead of other clients.
"""
_BCRYPT_BYTES = 72

Users = Mapping[bytes, bytes]
"""bcrypt hashes by user name."""


class Credentials(NamedTuple):
    """User and password as a client sent them."""

    user: bytes
    password: bytes


def credentials(authorization: str) -> Credentials | None:
    """Read an Authorization header; None if it is not basic authentication."""
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
    """Raise SettingsError if the module is missing."""
    try:
        import bcrypt  # noqa: F401, PLC0415 - comes with an extra
    except ImportError:
        raise SettingsError(
            "bcrypt is missing: pip install 'gpu-bottleneck-exporter[web-config]'"
        ) from None


@dataclass(eq=False, slots=True)
class Check:
    """A password waiting to be checked, for all requests of one address that sent it."""

    address: str
    mark: bytes
    work: Callable[[], bool]
    waiting: set[asyncio.Future[bool]] = field(default_factory=set)

    def tell(self, result: bool | None) -> None:  # noqa: FBT001 - what a future is told
        """Give the result to the waiting requests; None cancels them, as there is none."""
        for future in self.waiting:
            if not future.done() and result is None:
                future.cancel()
            elif not future.done():
                future.set_result(bool(result))


class Queue:
    """The order of checks: addresses take turns, giving their oldest twice, then their newest.

    So a client that sends many passwords delays only those of its own address. Even there, a
    newcomer may be next, and is after one and a half rounds at the latest.
    """

    def __init__(self) -> None:
        self._checks: dict[str, dict[bytes, Check]] = {}
        self._turn = 0

    def find(self, address: str, mark: bytes) -> Check | None:
        """The check of the same password from the same address, if one is waiting."""
        return self._checks.get(address, {}).get(mark)

    def put(self, check: Check) -> None:
        """Queue a check."""
        self._checks.setdefault(check.address, {})[check.mark] = check

    def drop(self, check: Check) -> None:
        """Remove a check that nobody waits for; does nothing if it was taken."""
        of_one = self._checks.get(check.address, {})
        if of_one.get(check.mark) is check:
            del of_one[check.mark]
            if not of_one:
                del self._checks[check.address]

    def take(self) -> Check | None:
        """Remove and return the next check; None if there is none."""
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
    """Checks passwords, one at a time, and remembers the correct ones.

    bcrypt is slow by design; later scrapes with the same password cost a keyed hash. Nobody is
    refused for lack of time: a client that waits sends no more passwords.
    """

    def __init__(self) -> None:
        self._checks = ThreadPoolExecutor(1, "web-login")
        self._secret = os.urandom(32)
        self._right: dict[bytes, None] = {}
        self._queue = Queue()
        self._running: asyncio.Task[None] | None = None

    def close(self) -> None:
        """End the thread after its current check; call it on the event loop."""
        if self._running is not None:
            self._running.cancel()
        self._checks.shutdown(wait=False, cancel_futures=True)

    async def right(self, users: Users, said: Credentials, address: str, receive: Receive) -> bool:
        """Whether the user is one of `users` and the password is theirs.

        A wrong login takes the time of the costliest hash, whether the user exists or not and
        whatever their own hash costs, so that timing does not reveal names.

        Args:
            users: Who may log in; not empty.
            said: What the client sent.
            address: Where it comes from; passwords from one address wait for each other.
            receive: Shows when the client disconnects.

        Raises:
            asyncio.CancelledError: If the client disconnected or the server is stopping.
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
                except Exception:  # else all others would wait forever
                    logger.exception("A password could not be checked.")
                finally:
                    check.tell(result)
        finally:
            self._running = None

    def _mark(self, said: Credentials, hashed: bytes) -> bytes:
        """Stands for a password in memory; worthless without this process's secret."""
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in (said.user, hashed, said.password):
            # With lengths, so that parts cannot be divided differently and match.
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _remember(self, mark: bytes) -> None:
        if len(self._right) >= _REMEMBERED:
            del self._right[next(iter(self._right))]
        self._right[mark] = None


def _cost(hashed: bytes) -> int:
    """The cost of a hash, as a power of two."""
    return int(hashed[4:6])


def _fits(password: bytes, hashed: bytes, costliest: int) -> bool:
    """Whether the password is right; a wrong one takes the work of the costliest hash."""
    if _checked(password, hashed):
        return True
    # Makes up the difference: 2^c + 2^c + 2^(c+1) + … + 2^(m-1) = 2^m.
    for cost in range(_cost(hashed), costliest):
        _checked(password, b"%b%02d%b" % (hashed[:4], cost, hashed[6:]))
    return False


def _checked(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # noqa: PLC0415 - comes with an extra

    try:
        # htpasswd and Go hash only the first 72 bytes; this module refuses more.
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed)
    except ValueError:
        return False
