"""Basic authentication against bcrypt hashes, off the event loop."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.answer import Receive, in_thread

MAX_WAITING = 32
"""Passwords that wait to be checked; at cost 10 the last one waits for about 2 s."""
_REMEMBERED = 256
_BCRYPT_BYTES = 72

Users = Mapping[bytes, bytes]
"""Hashes by name."""


class TooManyLoginsError(Exception):
    """More passwords wait than can be checked in time."""


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


class Logins:
    """Checks passwords, one at a time, and remembers those that were right.

    bcrypt is slow by design; the next scrapes with the same password cost a keyed hash.
    """

    def __init__(self) -> None:
        self._checks = ThreadPoolExecutor(1, "web-login")
        self._secret = os.urandom(32)
        self._right: dict[bytes, None] = {}
        self._waiting = 0

    def close(self) -> None:
        """Ends the thread, after the check that it is at."""
        self._checks.shutdown(wait=False, cancel_futures=True)

    async def right(self, users: Users, said: Credentials, receive: Receive) -> bool:
        """Whether the user is one of `users` and the password is theirs.

        A wrong name costs what the costliest hash does, so that names cannot be found
        out by timing.

        Raises:
            TooManyLoginsError: If too many passwords wait already.
            asyncio.CancelledError: If the client went away or the server is stopping.
        """
        known = said.user in users
        hashed = users[said.user] if known else max(users.values(), key=_cost)
        mark = self._mark(said, hashed)
        if known and mark in self._right:
            return True
        if self._waiting >= MAX_WAITING:
            raise TooManyLoginsError
        self._waiting += 1
        try:
            fits = await in_thread(self._checks, receive, lambda: _fits(said.password, hashed))
        finally:
            self._waiting -= 1
        if known and fits:
            self._remember(mark)
        return known and fits

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


def _cost(hashed: bytes) -> bytes:
    return hashed[4:6]


def _fits(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # noqa: PLC0415 - comes with an extra

    try:
        # htpasswd and Go hash the first 72 bytes; the module refuses more.
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed)
    except ValueError:
        return False
