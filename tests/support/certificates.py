"""Certificates and their authorities, made by each test for itself."""

from __future__ import annotations

import http.client
import ssl
import warnings
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import trustme

from support.waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class Pair:
    """A certificate with its chain, and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority whose files lie in `folder`."""

    def __init__(self, folder: Path, ca: trustme.CA | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = ca or trustme.CA()
        self.cert = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.cert)

    def issue(self, name: str, *identities: str, expired: bool = False) -> Pair:
        """Files `name`.pem and `name`.key, for the identities or for this machine."""
        now = datetime.now(tz=timezone.utc)
        dates = (now - timedelta(days=2), now - timedelta(days=1)) if expired else (None, None)
        issued = self.ca.issue_cert(
            *(identities or ("localhost", "127.0.0.1")), not_before=dates[0], not_after=dates[1]
        )
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(pair.key)
        return pair


def client(
    authority: Path | None,
    pair: Pair | None = None,
    versions: tuple[ssl.TLSVersion, ssl.TLSVersion] | None = None,
) -> ssl.SSLContext:
    """A client that trusts `authority` (None: any) and presents `pair`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(authority)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    if versions is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version, context.maximum_version = versions
        if versions[1] < ssl.TLSVersion.TLSv1_2:
            context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def ask(
    port: int,
    context: ssl.SSLContext,
    path: str = "/metrics",
    headers: dict[str, str] | None = None,
) -> int:
    """The status of one request on a new connection.

    Raises OSError, or its subclass ssl.SSLError, if the connection is refused.
    """
    connection = http.client.HTTPSConnection(
        "localhost", port, context=context, timeout=PATIENCE_SECONDS
    )
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def refused(port: int, context: ssl.SSLContext) -> bool:
    """Whether such a client gets no answer at all."""
    try:
        ask(port, context)
    except (ssl.SSLError, ConnectionError):
        return True
    return False
