"""Passwords, and headers that carry them."""

from __future__ import annotations

import base64

import bcrypt

CHEAP = 4
"""Cost of a hash: bcrypt allows nothing below."""
Word = str | bytes


def as_bytes(word: Word) -> bytes:
    """UTF-8 bytes of text."""
    return word if isinstance(word, bytes) else word.encode()


def hashed(password: Word, cost: int = CHEAP) -> str:
    """Hash for the configuration."""
    return bcrypt.hashpw(as_bytes(password), bcrypt.gensalt(cost)).decode()


def basic(user: Word, password: Word) -> dict[str, str]:
    """The header of a user who logs in."""
    return encoded(as_bytes(user) + b":" + as_bytes(password))


def encoded(credentials: bytes, scheme: str = "Basic") -> dict[str, str]:
    """The header with any credentials."""
    return {"Authorization": f"{scheme} {base64.b64encode(credentials).decode()}"}
