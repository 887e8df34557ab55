"""Basic authentication against bcrypt hashes."""

from __future__ import annotations

import base64
import hmac
import os
import threading
from collections.abc import Callable, Mapping

_LOOK_SECONDS = 0.1
"""Between two looks whether a client in line still waits: how long a thread outlives it."""
_BCRYPT_BYTES = 72
"""Of a password that htpasswd and Go hash; the module refuses more."""


def credentials(authorization: str) -> tuple[bytes, bytes] | None:
    """User and password of an Authorization header; None if it is not basic authentication."""
    scheme, _, token = authorization.partition(" ")
    try:
        decoded = base64.b64decode(token.strip(), validate=True)
    except ValueError:
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon and scheme.lower() == "basic" else None


class Logins:
    """Checks passwords, one at a time, and remembers the correct ones; thread-safe.

    bcrypt is slow by design; later scrapes with the same password cost a keyed hash. Nobody is
    refused for lack of time: a client that waits sends no more passwords.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(32)
        self._right: set[bytes] = set()
        """Passwords with their hashes, worthless without this process's secret."""
        self._turn = threading.Lock()

    def right(
        self, users: Mapping[bytes, bytes], authorization: str, wanted: Callable[[], bool]
    ) -> bool:
        """Whether an Authorization header has one of `users` and their password.

        A wrong login takes the time of the costliest hash, whether the user exists or not and
        whatever their own hash costs, so that timing does not reveal names.

        Args:
            users: bcrypt hashes by name; not empty.
            authorization: The header.
            wanted: Whether the client still waits; False is returned soon after it does not.
        """
        said = credentials(authorization)
        if said is None:
            return False
        user, password = said[0], said[1][:_BCRYPT_BYTES]
        costliest = max(users.values(), key=_cost)
        hashed = users.get(user, costliest)
        mark = hmac.digest(self._secret, hashed + password, "sha256")
        known = user in users
        if known and mark in self._right:
            return True
        while not self._turn.acquire(timeout=_LOOK_SECONDS):
            if not wanted():
                return False
        try:
            if known and mark in self._right:  # another connection has brought it meanwhile
                return True
            fits = wanted() and _fits(password, hashed, _cost(costliest)) and known
            if fits:
                self._right.add(mark)
            return fits
        finally:
            self._turn.release()


def _cost(hashed: bytes) -> int:
    """The cost of a hash, as a power of two."""
    return int(hashed[4:6])


def _fits(password: bytes, hashed: bytes, costliest: int) -> bool:
    """Whether the password is right; a wrong one takes the work of the costliest hash."""
    import bcrypt  # noqa: PLC0415 - comes with an extra

    try:
        if bcrypt.checkpw(password, hashed):
            return True
        # Makes up the difference: 2^c + 2^c + 2^(c+1) + … + 2^(m-1) = 2^m.
        for cost in range(_cost(hashed), costliest):
            bcrypt.checkpw(password, b"%b%02d%b" % (hashed[:4], cost, hashed[6:]))
    except ValueError:  # a NUL in the password, a salt that there cannot be
        pass
    return False
