"""SECURITY.md names each privilege that chart and unit ask for, and none that they do not."""

from __future__ import annotations

import re
from typing import Any

from deploy.machine import REPOSITORY, UNIT, setting
from helm.chart import rendered
from tables.splice import section

TEXT = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")


def table() -> dict[str, tuple[str, str]]:
    """Use by chart and unit, by privilege."""
    lines = section(TEXT, "privileges").splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == 5 for row in rows)
    assert all(all(row) for row in rows)
    return {row[0].strip("`"): (row[1], row[2]) for row in rows}


def of_chart() -> dict[str, str]:
    """Privileges of a release with default values, in the table's words."""
    pod, container = rendered().pod, rendered().container
    context: dict[str, Any] = container["securityContext"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    fields = {name: "yes" for name in ("hostPID", "hostNetwork", "hostIPC") if pod.get(name)}
    fields |= {"runAsUser: 0": "yes"} if pod["securityContext"]["runAsUser"] == 0 else {}
    fields |= dict.fromkeys(context["capabilities"]["add"], "yes")
    fields |= {"privileged": "yes"} if context.get("privileged") else {}
    for volume in pod["volumes"]:
        read_only = mounts[volume["name"]].get("readOnly")
        fields[volume["hostPath"]["path"]] = "read-only" if read_only else "yes"
    environment = rendered().environment
    return fields | {name: v for name, v in environment.items() if name.startswith("NVIDIA_")}


def of_unit() -> set[str]:
    """Privileges of the unit beyond those of every service."""
    text = UNIT.read_text()
    calls = re.findall(r"^SystemCallFilter=@system-service (.*)$", text, re.MULTILINE)
    devices = re.findall(r"^DeviceAllow=(\S+) rw$", text, re.MULTILINE)
    families = set(setting("RestrictAddressFamilies").split())
    capabilities = {word.removeprefix("CAP_") for word in setting("AmbientCapabilities").split()}
    assert families >= {"AF_INET", "AF_INET6"}
    grouped = {"AF_INET AF_INET6"} | (families - {"AF_INET", "AF_INET6"})
    return {*calls[0].split(), *devices, *grouped, *capabilities}


def test_each_privilege_of_the_chart_has_a_documented_reason() -> None:
    fields = {name: chart for name, (chart, _) in table().items()}
    result = of_chart()
    assert {name: fields.get(name) for name in result} == result
    only_told = {name for name, chart in fields.items() if chart in ("yes", "read-only")}
    assert only_told - set(result) == {"AF_INET AF_INET6", "AF_NETLINK", "AF_UNIX"}


def test_each_privilege_of_the_unit_has_a_documented_reason() -> None:
    assert {name for name, (_, unit) in table().items() if unit == "yes"} == of_unit()
    assert setting("AmbientCapabilities") == setting("CapabilityBoundingSet")
    assert setting("DynamicUser") == setting("NoNewPrivileges") == "yes"
    assert setting("ProtectSystem") == "strict"
