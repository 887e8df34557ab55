"""The web config: where the exporter finds it, and who follows."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import yaml

from gpu_bottleneck_exporter.web.config import parse
from helm import chart
from helm.chart import rendered

INLINE = chart.case("web-config")
SECRET = chart.case("web-config-secret")


def sources(found: chart.Rendered) -> list[str]:
    """Secrets that lie in the folder of the web config."""
    (volume,) = [v for v in found.pod["volumes"] if v["name"] == "web-config"]
    assert volume["projected"]["defaultMode"] == 0o440
    return [source["secret"]["name"] for source in volume["projected"]["sources"]]


def file(found: chart.Rendered) -> PurePosixPath:
    (mount,) = [m for m in found.container["volumeMounts"] if m["name"] == "web-config"]
    path = PurePosixPath(found.environment["GPU_EXPORTER_WEB_CONFIG_FILE"])
    assert mount["mountPath"] == f"{path.parent}"
    return path


def test_inline_content_is_a_secret_beside_certificates(tmp_path: Path) -> None:
    result = rendered(INLINE)
    secret = result.one("Secret")
    assert sources(result) == [secret["metadata"]["name"], "exporter-tls"]
    ((name, text),) = secret["stringData"].items()
    assert name == file(result).name
    assert yaml.safe_load(text) == INLINE["webConfig"]["content"]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    config = parse(path)
    assert config.tls is not None
    assert config.tls.files == (tmp_path / "tls.crt", tmp_path / "tls.key")
    assert set(config.users) == {b"prometheus"}


def test_pods_are_replaced_when_tls_goes_on_and_for_nothing_else() -> None:
    """A changed file is read by itself; switching TLS takes a new process."""

    def template(**content: object) -> object:
        return rendered(webConfig={"content": content}).one("DaemonSet")["spec"]["template"]

    users = {"basic_auth_users": {"a": "b"}}
    assert template(**users) == template(basic_auth_users={"c": "d"})
    assert template(**users) != template(**users, tls_server_config={"cert_file": "tls.crt"})


def test_a_secret_of_ones_own() -> None:
    result = rendered(SECRET)
    assert result.of("Secret") == []
    assert sources(result) == ["exporter-web"]
    assert file(result).name == "web.yml"


def test_another_user_than_root_may_read_it() -> None:
    pod = rendered({**INLINE, **chart.case("restricted")}).pod
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_the_scheme_follows() -> None:
    (endpoint,) = rendered(INLINE).one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == INLINE["serviceMonitor"]["tlsConfig"]
    assert endpoint["basicAuth"] == INLINE["serviceMonitor"]["basicAuth"]
    (endpoint,) = rendered(SECRET).one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    passwords = {"content": {"basic_auth_users": {"a": "b"}}}
    result = rendered(webConfig=passwords, serviceMonitor={"enabled": True})
    assert result.one("ServiceMonitor")["spec"]["endpoints"][0]["scheme"] == "http"
