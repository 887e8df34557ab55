"""A real Prometheus scrapes the command over mutual TLS, with a user."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from support.certificates import Authority, Pair
from support.command import ANY_PORT, serving
from support.logins import hashed
from support.prometheus import Prometheus, prometheus
from support.waiting import until

INTERVAL_SECONDS = 0.5
PASSWORD = "p:äss"  # noqa: S105 - of this test only


def web_config(authority: Authority) -> Path:
    """The exporter's file, beside its certificates."""
    authority.issue("server")
    tls: dict[str, object] = {"cert_file": "server.pem", "key_file": "server.key"}
    tls |= {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}
    tls |= {"client_allowed_sans": ["prometheus.example"]}
    users = {"prometheus": hashed(PASSWORD, 10)}
    path = authority.folder / "web-config.yml"
    path.write_text(json.dumps({"tls_server_config": tls, "basic_auth_users": users}))
    return path


def access(
    authority: Path, pair: Pair | None = None, password: str = PASSWORD
) -> dict[str, object]:
    """Settings that a job needs to scrape it."""
    tls = {"ca_file": f"{authority}"}
    if pair is not None:
        tls |= {"cert_file": f"{pair.cert}", "key_file": f"{pair.key}"}
    user = {"username": "prometheus", "password": password}
    return {"scheme": "https", "tls_config": tls, "basic_auth": user}


def ever_up(server: Prometheus) -> dict[str, float]:
    """Whether a job was ever scraped: on a busy machine, not each scrape is in time."""
    return {labels["job"]: value for labels, value in server.query("max_over_time(up[1h])")}


def test_only_the_right_prometheus_scrapes(tmp_path: Path) -> None:
    """The table of refused clients is in web/test_tls.py."""
    authority, other = Authority(tmp_path / "site"), Authority(tmp_path / "other")
    pair = authority.issue("prometheus", "prometheus.example")
    ways: Mapping[str, dict[str, object]] = {
        "right": access(authority.cert, pair),
        "wrong password": access(authority.cert, pair, "wrong"),
        "no certificate": access(authority.cert),
        "another server": access(other.cert, pair),
        "no TLS": {},
    }
    flags = ("--web.config.file", str(web_config(authority)))
    with serving(tmp_path, "serve", *ANY_PORT, *flags) as exporter:
        jobs = [
            (name, exporter.target, INTERVAL_SECONDS * (1 + n % 3)) for n, name in enumerate(ways)
        ]
        with prometheus(tmp_path, jobs, access=ways) as server:
            until(lambda: len(ever_up(server)) == len(ways), "a scrape of each job")
            until(lambda: ever_up(server)["right"] == 1, "the right one")
            assert ever_up(server) == {name: float(name == "right") for name in ways}

            # A new authority for both sides, without a restart of either: Prometheus reads
            # its files again too, and then connects anew.
            other.issue("server")
            for name in ("server.key", "server.pem", "ca.pem"):
                (other.folder / name).replace(authority.folder / name)
            new = other.issue("new", "prometheus.example")
            new.cert.replace(pair.cert)
            new.key.replace(pair.key)
            until(lambda: "reloaded the" in exporter.said, "the renewal")
            scraped_again = f'up{{job="right"}} == 1 and timestamp(up) > {time.time() + 1}'
            until(lambda: server.query(scraped_again) != [], "the right one again")
        assert exporter.terminate() == 0
        assert "Traceback" not in exporter.said
