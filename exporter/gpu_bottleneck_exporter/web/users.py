"""Basic authentication against bcrypt hashes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import SettingsError

_REMEMBERED = 256
"""Correct passwords that are recognised without bcrypt; the oldest goes first."""
_LOOK_SECONDS = 0.1
"""Between two looks whether a client in the queue still waits."""
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


class Logins:
    """Checks passwords, one at a time, and remembers the correct ones; thread-safe.

    bcrypt is slow by design; later scrapes with the same password cost a keyed hash. Nobody is
    refused for lack of time: a client that waits sends no more passwords.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(32)
        self._right: dict[bytes, None] = {}
        self._queue: list[object] = []
        self._changed = threading.Condition()

    def right(self, users: Users, authorization: str, wanted: Callable[[], bool]) -> bool:
        """Whether an Authorization header has one of `users` and their password.

        A wrong login takes the time of the costliest hash, whether the user exists or not and
        whatever their own hash costs, so that timing does not reveal names.

        Args:
            users: Who may log in; not empty.
            authorization: The header.
            wanted: Whether the client still waits; False is returned soon after it does not.
        """
        said = credentials(authorization)
        if said is None:
            return False
        known = said.user in users
        costliest = max(users.values(), key=_cost)
        hashed = users[said.user] if known else costliest
        mark = self._mark(said, hashed)
        if known and mark in self._right:
            return True
        with self._turn(wanted):
            if known and mark in self._right:  # another connection has brought it meanwhile
                return True
            if not wanted() or not _fits(said.password, hashed, _cost(costliest)) or not known:
                return False
            self._remember(mark)
        return True

    @contextmanager
    def _turn(self, wanted: Callable[[], bool]) -> Iterator[None]:
        """First come, first served; who is not wanted any more need not wait."""
        place = object()
        with self._changed:
            self._queue.append(place)
            while self._queue[0] is not place and wanted():
                self._changed.wait(_LOOK_SECONDS)
        try:
            yield
        finally:
            with self._changed:
                self._queue.remove(place)
                self._changed.notify_all()

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
