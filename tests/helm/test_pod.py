"""The exporter's pod: what it may do, where it runs, what it is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import pytest

from gpu_bottleneck_exporter import cli
from gpu_bottleneck_exporter.flags import ENVIRONMENT_PREFIX
from gpu_bottleneck_exporter.settings import CDI, KUBELET_SOCKET
from helm import chart
from helm.chart import Object, each_case, rendered, rendered_for
from support.offenders import each
from support.options import options_of
from support.rows import rows

NOBODY = 65534
RESTRICTED = chart.case("restricted")
PERMISSIONS = chart.ROOT / "exporter/OPERATIONS.md"
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}
"""Kinds that the standard "restricted" allows."""
JOBS_FOLDER = "/var/lib/gpu-bottleneck-exporter"
OTHERWISE = {"procMount", "windowsOptions", "seLinuxOptions", "sysctls"}


def violations(pod: Object) -> Iterator[str]:
    """Rules of the Pod Security Standards, baseline and restricted, that a Linux pod breaks.

    https://kubernetes.io/docs/concepts/security/pod-security-standards
    """
    yield from (name for name in ("hostPID", "hostIPC", "hostNetwork") if pod.get(name))
    volumes = pod.get("volumes", [])
    yield from (f"volume {volume['name']}" for volume in volumes if not VOLUMES & volume.keys())
    for container in pod["containers"]:
        own = container["securityContext"]
        context = {**pod.get("securityContext", {}), **own}
        capabilities = own.get("capabilities", {})
        seccomp = context.get("seccompProfile", {}).get("type")
        probes = [probe for name, probe in container.items() if name.endswith("Probe")]
        broken = {
            "privileged": own.get("privileged"),
            "privilege escalation": own.get("allowPrivilegeEscalation") is not False,
            "capabilities are not dropped": capabilities.get("drop") != ["ALL"],
            "capabilities are added": {*capabilities.get("add", [])} - {"NET_BIND_SERVICE"},
            "root": context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0,
            "seccomp": seccomp not in {"RuntimeDefault", "Localhost"},
            "another proc, Windows, SELinux or sysctls": context.keys() & OTHERWISE,
            "hostPort": any("hostPort" in port for port in container.get("ports", [])),
            "probes of other hosts": '"host"' in json.dumps(probes),
        }
        yield from (rule for rule, is_broken in broken.items() if is_broken)


def flags(container: Object) -> dict[str, str]:
    """Arguments on the command line."""
    command, *result = container["args"]
    assert command == "serve"
    return dict(flag.partition("=")[::2] for flag in result)


@each(["restricted", "nri", "default-runtime", "web-config", "dashboards"])
def test_restricted_breaks_no_rule_of_pod_security_with_other_switches_either(name: str) -> None:
    result = rendered({**chart.case(name), **RESTRICTED})
    assert [[*violations(pod)] for pod in result.pods] == [[], []]
    assert result.pod["securityContext"]["runAsUser"] == NOBODY
    lent = [m["name"] for m in result.container.get("volumeMounts", [])]
    assert lent == (["web-config"] if name == "web-config" else [])


def test_full_breaks_those_rules_that_it_must_and_has_the_documented_capabilities() -> None:
    volumes = [f"volume {name}" for name in ("cgroup", "pod-resources", "container-logs")]
    broken = ["hostPID", *volumes, "capabilities are added", "root"]
    assert [*violations(rendered().pod)] == broken
    section = PERMISSIONS.read_text(encoding="utf-8").partition("\n## Permissions\n")[2]
    values = set(re.findall(r"CAP_([A-Z_]+)", section.partition("\n## ")[0]))
    added = rendered().container["securityContext"]["capabilities"]
    assert set(added["add"]) == values == {"SYS_PTRACE", "DAC_READ_SEARCH"}
    assert added["drop"] == ["ALL"]


def test_full_without_capabilities() -> None:
    result = rendered(chart.case("without-capabilities"))
    assert result.container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert result.pod["hostPID"] is True
    assert result.hosts_folders == {"/sys/fs/cgroup": "/sys/fs/cgroup"}
    assert "SYS_PTRACE" in result.notes


@each_case
def test_only_the_switch_of_that_name_is_privileged(case: Path) -> None:
    privileged = case.stem == "privileged-values"
    pods = rendered(chart.loaded(case)).pods
    for pod in pods:
        for container in pod["containers"]:
            context = container["securityContext"]
            own = privileged and container["name"] == "exporter"
            assert context.get("privileged", False) is own
            assert context["readOnlyRootFilesystem"] is True
            assert "SYS_ADMIN" not in context.get("capabilities", {}).get("add", [])
            assert own or context["allowPrivilegeEscalation"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.get("hostNetwork", False) is (case.stem == "newer-values" and pod is pods[0])
        assert "hostIPC" not in pod


@each_case
def test_no_gpu_is_requested_and_mounts_of_the_node_are_read_only(case: Path) -> None:
    result = rendered(chart.loaded(case))
    for pod in result.pods:
        assert "resourceClaims" not in pod
        for container in pod["containers"]:
            expected = container.get("resources", {})
            assert {*expected.get("requests", {}), *expected.get("limits", {})} <= {"cpu", "memory"}
    mounts = result.container.get("volumeMounts", [])
    writable = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
    # Opening a device takes no write access to its folder, but the runtime makes files in /dev.
    allowed = {
        "privileged-values": {"/dev"},
        "jobs-values": {JOBS_FOLDER},
        "newer-values": {JOBS_FOLDER},
    }
    assert writable & {*result.hosts_folders.values()} <= allowed.get(case.stem, set())


@each(product(chart.CASES, [("1.29.9", None), ("1.30.0-gke.1", "IfPossible")]))
def test_mounts_below_a_mount_of_the_node_are_read_only(
    of: tuple[Path, tuple[str, str | None]],
) -> None:
    case, (version, below) = of
    values = chart.loaded(case)
    (container,) = rendered_for(version, values).pod["containers"]
    extra = {mount["name"] for mount in values.get("extraVolumeMounts", [])}
    mounts = [m for m in container.get("volumeMounts", []) if m["name"] not in extra]
    # Kubernetes refuses it for what may be written to, and for mounts that propagate.
    assert all("mountPropagation" not in mount for mount in mounts)
    assert {m.get("recursiveReadOnly") for m in mounts if m.get("readOnly")} <= {below}
    assert not any("recursiveReadOnly" in m for m in mounts if not m.get("readOnly"))


def test_full_sees_cgroups_the_kubelet_and_names_of_logs() -> None:
    result = rendered()
    folders = result.hosts_folders
    assert folders == {path: path for path in folders}
    assert set(folders) == {"/sys/fs/cgroup", f"{KUBELET_SOCKET.parent}", "/var/log/containers"}
    assert {volume["hostPath"]["type"] for volume in result.pod["volumes"]} == {"Directory"}
    environment = result.environment
    assert environment["GPU_EXPORTER_KUBELET_SOCKET"] == f"{KUBELET_SOCKET}"
    assert environment["GPU_EXPORTER_KUBELET_CONTAINER_LOGS"] == "/var/log/containers"


def test_another_kubelet() -> None:
    values = chart.case("everything-else")
    folder = values["kubelet"]["podResourcesPath"]
    result = rendered(values)
    assert set(result.hosts_folders) == {"/sys/fs/cgroup", folder, f"{CDI}"}
    environment = result.environment
    assert environment["GPU_EXPORTER_KUBELET_CDI"] == f"{CDI}"
    assert environment["GPU_EXPORTER_KUBELET_SOCKET"] == f"{folder}/kubelet.sock"
    assert "GPU_EXPORTER_KUBELET_CONTAINER_LOGS" not in environment


def test_jobs_are_kept_where_a_volume_is_given() -> None:
    result = rendered(chart.case("jobs"))
    fields = {name: text for name, text in result.environment.items() if "_JOBS_" in name}
    assert fields == {
        "GPU_EXPORTER_JOBS_STATE_FILE": f"{JOBS_FOLDER}/jobs",
        "GPU_EXPORTER_JOBS_KEEP": "5000",
        "GPU_EXPORTER_JOBS_KEEP_FOR": "1w",
        "GPU_EXPORTER_JOBS_CLAIMS": "WANDB_RUN_ID,RAY_JOB_ID",
    }
    assert result.hosts_folders[JOBS_FOLDER] == JOBS_FOLDER
    assert "GPU_EXPORTER_JOBS_STATE_FILE" not in rendered().environment


def test_restricted_keeps_them_in_the_pod() -> None:
    result = rendered({**RESTRICTED, "jobs": {"volume": {"emptyDir": {}}}})
    assert [*violations(result.pod)] == []
    (mount,) = result.container["volumeMounts"]
    assert (mount["mountPath"], mount.get("readOnly", False)) == (JOBS_FOLDER, False)
    assert result.pod["volumes"] == [{"name": mount["name"], "emptyDir": {}}]


ONLY_SERVES = {"--web.listen-address", "--web.telemetry-path", "--web.runbook-base"}
ONLY_SERVES |= {"--log.level", "--log.format"}
"""Flags that `check` has no use for, or whose values would change what it prints."""


@each_case
def test_the_command_knows_every_flag_and_check_needs_none(case: Path) -> None:
    """Run in the container, it sees the environment and not the exporter's flags."""
    values = chart.loaded(case)
    result = rendered(values)
    assert cli.commands.commands["serve"].make_context("serve", result.container["args"][1:])
    extra = values.get("exporter", {}).get("extraArgs", [])
    assert (
        flags(result.container).keys() - {flag.partition("=")[0] for flag in extra} <= ONLY_SERVES
    )


@each(product(chart.CASES, ["serve", "check"]))
def test_commands_know_every_variable_and_take_its_value(of: tuple[Path, str]) -> None:
    case, command = of
    fields = {f"{option.envvar}": option for option in options_of(command)}
    for name, value in rendered(chart.loaded(case)).environment.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            fields[name].type.convert(value, fields[name], None)


def test_each_variable_is_set_once_by_extra_ones_before_values() -> None:
    """Server-side apply refuses a name that is in the list twice."""
    extra = {"GPU_EXPORTER_WITHOUT": "xid", "GPU_EXPORTER_NODE_NAME": "rack7-3", "TZ": "UTC"}
    release = rendered(
        exporter={
            "disabledCollectors": ["stacks", "host"],
            "enabledCollectors": ["stacks"],
            "extraEnv": [{"name": name, "value": value} for name, value in extra.items()],
        },
        **adding(),
    )
    names = [variable["name"] for variable in release.container["env"]]
    assert len(names) == len(set(names))
    assert release.environment.items() >= extra.items()
    assert release.environment["GPU_EXPORTER_COLLECTOR_STACKS"] == "true"


def test_extra_flags_win_over_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = {"disabledCollectors": ["power", "host"], "extraArgs": ["--collector.power"]}
    result = rendered(exporter={**exporter, "enabledCollectors": ["stacks"]})
    for name, value in result.environment.items():
        monkeypatch.setenv(name, value)
    command, *outcome = result.container["args"]
    with cli.commands.commands[command].make_context(command, outcome) as context:
        assert context.params["collector_power"] is True
        assert context.params["collector_host"] is False
        assert context.params["collector_stacks"] is True


@each_case
def test_ports_and_paths_agree(case: Path) -> None:
    result = rendered(chart.loaded(case))
    (port,) = result.container["ports"]
    assert flags(result.container)["--web.listen-address"] == f":{port['containerPort']}"
    selector = result.one("DaemonSet")["spec"]["selector"]["matchLabels"].items()
    assert selector <= result.labels.items()
    for service in result.of("Service"):
        assert [p["targetPort"] for p in service["spec"]["ports"]] == [port["name"]]
        assert service["spec"]["selector"].items() <= result.labels.items()
    for test in result.of("Pod"):  # it is none of the exporters
        assert not selector <= test["metadata"]["labels"].items()


MOUNTED = "/var/run/nvidia-container-devices"
ALL_GPUS = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}


WAYS: Mapping[str, tuple[str | None, Mapping[str, str]]] = {
    "default": ("nvidia", ALL_GPUS),
    "restricted": ("nvidia", ALL_GPUS),
    "default-runtime": (None, ALL_GPUS),
    "devices-as-mounts": ("nvidia", {**ALL_GPUS, "NVIDIA_VISIBLE_DEVICES": MOUNTED}),
    "nri": (None, {}),
    "privileged": (None, {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}),
}


@each(WAYS)
def test_ways_to_the_gpus(name: str) -> None:
    result, (runtime, variables) = rendered(chart.case(name)), WAYS[name]
    assert result.pod.get("runtimeClassName") == runtime
    of_the_gpus = {k: v for k, v in result.environment.items() if not k.startswith("GPU_EXPORTER_")}
    assert of_the_gpus == variables


@rows(
    "values, expected",
    {
        "default": ({}, (None, None, None)),
        "host port": ({"hostPort": 9400}, (None, 9400, None)),
        "host network": ({"hostNetwork": True}, (True, None, "ClusterFirstWithHostNet")),
        "both": (
            {"hostNetwork": True, "hostPort": 10170, "dnsPolicy": "Default"},
            (True, 10170, "Default"),
        ),
        "dns": ({"dnsPolicy": "Default"}, (None, None, "Default")),
    },
)
def test_ports_of_the_node(values: Object, expected: tuple[object, ...]) -> None:
    release = rendered(values)
    (port,) = release.container["ports"]
    pod = release.pod
    assert (pod.get("hostNetwork"), port.get("hostPort"), pod.get("dnsPolicy")) == expected


def test_the_exporter_knows_its_nodes_name() -> None:
    (variable,) = [entry for entry in rendered().container["env"] if "valueFrom" in entry]
    assert variable == {
        "name": f"{ENVIRONMENT_PREFIX}NODE_NAME",
        "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
    }


def test_the_nri_plugin_is_asked_for_this_container() -> None:
    template = rendered(chart.case("nri")).one("DaemonSet")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    key = f"nvidia.cdi.k8s.io/container.{container['name']}"
    assert template["metadata"]["annotations"][key] == "management.nvidia.com/gpu=all"


def test_privileged_has_the_library_in_the_place_of_the_loader() -> None:
    result = rendered(chart.case("privileged"))
    folders = result.hosts_folders
    assert folders["/home/kubernetes/bin/nvidia/lib64"] == result.environment["LD_LIBRARY_PATH"]
    assert folders["/dev"] == "/dev"
    assert "privileged" in result.notes


OTHERS: dict[str, Mapping[str, str]] = {
    "no GPU": {"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "false"},
    "AMD on DigitalOcean": {"doks.digitalocean.com/gpu-brand": "amd"},
    "AMD on Karpenter": {"karpenter.k8s.aws/instance-gpu-manufacturer": "amd"},
    "NFD, AMD": {"feature.node.kubernetes.io/pci-0300_1002.present": "true"},
    "GKE, TPU": {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"},
}


def matches(pod: Object, labels: Mapping[str, str]) -> bool:
    """Whether the scheduler lets the pod onto a node: terms are alternatives, expressions not."""
    (required,) = pod["affinity"]["nodeAffinity"].values()
    terms = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
    assert {item["operator"] for term in terms for item in term} == {"Exists", "In"}
    return any(  # what has no values takes any
        all(labels.get(item["key"]) in item.get("values", labels.values()) for item in term)
        for term in terms
    )


def test_nodes_with_nvidia_gpus_are_found_and_others_left_alone() -> None:
    pod, result = rendered().pod, chart.chart().values["gpuNodeLabels"]
    nodes = [{label["key"]: label.get("values", ["any"])[0]} for label in result]
    assert [labels for labels in nodes if not matches(pod, labels)] == []
    assert [name for name, labels in OTHERS.items() if matches(pod, labels)] == []


def test_nodes_can_be_chosen_otherwise() -> None:
    assert "affinity" not in rendered(chart.case("every-node")).pod
    values = chart.case("everything-else")
    pod = rendered(values).pod
    assert pod["affinity"] == values["affinity"]
    assert pod["nodeSelector"] == values["nodeSelector"]
    assert "tolerations" not in pod


def tolerated(pod: Object, key: str, effect: str) -> bool:
    values = [t for t in pod["tolerations"] if t["operator"] == "Exists"]
    return any(t.get("key", key) == key and t.get("effect", effect) == effect for t in values)


def test_taints() -> None:
    pod = rendered().pod
    taken = [("nvidia.com/gpu", "NoExecute")]
    taken += [(key, "NoSchedule") for key in ("nvidia.com/gpu", "sku", "dedicated")]
    assert [item for item in taken if not tolerated(pod, *item)] == []
    assert not tolerated(pod, "node.kubernetes.io/out-of-service", "NoExecute")


def test_no_probe_comes_before_the_exporter_can_answer() -> None:
    """One that does would be an event at each start; measured in values.yaml."""
    startup = rendered().container["startupProbe"]
    assert startup["initialDelaySeconds"] == startup["timeoutSeconds"] == 5
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 60


NO_KUBELET = {"kubelet": {"enabled": False}}
PRIVATE = "wait_channel,connections,process_io"
OF_THE_NODE = "host_pids,cgroup_cpu,cgroup_memory,psi_cgroup"


def adding(*capabilities: str) -> Object:
    return {"privilege": {"capabilities": [*capabilities]}}


@rows(
    "values, without",
    {
        "all": ({}, None),
        "restricted": (RESTRICTED, f"{OF_THE_NODE},kubelet,{PRIVATE}"),
        "no kubelet": (NO_KUBELET, "kubelet"),
        "both": ({**RESTRICTED, **NO_KUBELET}, f"{OF_THE_NODE},kubelet,{PRIVATE}"),
        "no capabilities": (adding(), PRIVATE),
        "ptrace alone": (adding("SYS_PTRACE"), "connections,process_io"),
        "reading alone": (adding("DAC_READ_SEARCH"), PRIVATE),
        "both prefixed": (adding("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"), None),
        "privileged": ({**adding(), "gpu": {"access": "privileged"}}, None),
    },
)
def test_a_signal_switched_off_by_the_values_is_not_expected(
    values: Object, without: str | None
) -> None:
    """Names of missing signals are checked in e2e."""
    assert rendered(values).environment.get("GPU_EXPORTER_WITHOUT") == without


def test_capabilities_are_written_as_kubernetes_does() -> None:
    release = rendered(adding("CAP_SYS_PTRACE", "SYS_PTRACE", "CAP_SYSLOG"))
    added = release.container["securityContext"]["capabilities"]["add"]
    assert added == ["SYS_PTRACE", "SYSLOG"]
    assert "Without SYS_PTRACE, " not in release.notes


def asks(path: str, scheme: str = "HTTP") -> Object:
    return {"httpGet": {"path": path, "port": "metrics", "scheme": scheme}}


CONNECTS = {"tcpSocket": {"port": "metrics"}}


@each(
    [
        ("default", "startup", asks("/-/healthy")),
        ("default", "liveness", asks("/-/healthy")),
        ("default", "readiness", asks("/-/ready")),
        ("web-config", "readiness", CONNECTS),
        ("web-config-secret", "readiness", asks("/-/ready", "HTTPS")),
        ("everything-else", "readiness", CONNECTS),
    ]
)
def test_probes_request_paths_that_the_exporter_serves(of: tuple[str, str, Object]) -> None:
    name, probe, handler = of
    result = rendered(chart.case(name)).container[f"{probe}Probe"]
    assert {key: result[key] for key in ("httpGet", "tcpSocket") if key in result} == handler
