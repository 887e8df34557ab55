"""Basic authentication against bcrypt hashes."""

from __future__ import annotations

import base64
import hmac
import os
import threading
from collections.abc import Callable, Mapping


def credentials(authorization: str) -> tuple[bytes, bytes] | None:
    """User and password of an Authorization header; None unless it is basic authentication."""
    scheme, _, token = authorization.partition(" ")
    try:
        decoded = base64.b64decode(token.strip(), validate=True)
    except ValueError:
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon and scheme.lower() == "basic" else None


class Authenticator:
    """Checks passwords one at a time and caches the correct ones. Thread-safe.

    bcrypt is slow by design; a cached password costs a keyed hash. The lock has no timeout.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(32)
        self._accepted: set[bytes] = set()
        """Digests of passwords with hashes, keyed by this process's secret."""
        self._lock = threading.Lock()

    def check(
        self, users: Mapping[bytes, bytes], authorization: str, connected: Callable[[], bool]
    ) -> bool:
        """Whether an Authorization header has one of `users` and their password.

        A failed login always takes the time of the costliest hash, so that timing does not reveal
        user names.

        Args:
            users: bcrypt hashes by name; not empty.
            authorization: The header.
            connected: Whether the client is still connected; if not, the check is abandoned.
        """
        login = credentials(authorization)
        if login is None:
            return False
        user, password = login[0], login[1][:72]  # bcrypt's limit, applied by htpasswd and Go
        costliest = max(users.values(), key=_cost)
        hashed = users.get(user, costliest)
        digest = hmac.digest(self._secret, hashed + password, "sha256")
        exists = user in users
        if exists and digest in self._accepted:
            return True
        while not self._lock.acquire(timeout=0.1):
            if not connected():
                return False
        try:
            if exists and digest in self._accepted:  # another connection was first
                return True
            accepted = connected() and _matches(password, hashed, _cost(costliest)) and exists
            if accepted:
                self._accepted.add(digest)
            return accepted
        finally:
            self._lock.release()


def _cost(hashed: bytes) -> int:
    """Binary logarithm of the hash's rounds."""
    return int(hashed[4:6])


def _matches(password: bytes, hashed: bytes, max_cost: int) -> bool:
    """Whether the password is correct; a wrong one takes 2^`max_cost` rounds."""
    import bcrypt  # noqa: PLC0415 - comes with an extra

    try:
        if bcrypt.checkpw(password, hashed):
            return True
        # Makes up the difference: 2^c + 2^c + 2^(c+1) + … + 2^(m-1) = 2^m.
        for cost in range(_cost(hashed), max_cost):
            bcrypt.checkpw(password, b"%b%02d%b" % (hashed[:4], cost, hashed[6:]))
    except ValueError:  # a NUL in the password, or an invalid salt
        pass
    return False
