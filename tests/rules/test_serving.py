"""What inference engines tell: one name for all of them, and on which GPUs they serve."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rules.cases import fleets_of, table
from rules.fleet import ASIDE, FILES, LABEL, RULES, Fleet, Gpu, add_gpu, group_names
from rules.parsed import rules
from rules.scenes import add_scenes
from rules.series import Signal
from support.rows import beside

FIXTURES = Path(__file__).with_name("serving")
SAMPLE = re.compile(r"^([a-z_:0-9]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
RECORDED_SECONDS = 3600
"""Age of the counters in the fixtures."""
EXPECTED = beside(__file__, "serving.yml")
SERIES = {
    "running": "serving:requests_running:count",
    "waiting": "serving:requests_waiting:count",
    "kv_cache": "serving:kv_cache:used_ratio",
    "preemptions": "serving:preemptions:rate5m",
    "prefill": 'serving:tokens:rate5m{phase="prefill"}',
    "decode": 'serving:tokens:rate5m{phase="decode"}',
    "finished": "serving:requests_finished:rate5m",
    "time_in_queue": "serving:time_in_queue:seconds",
    "in_front_end": "serving:requests_in_front_end:count_avg5m",
}
END_MINUTE = 16


def samples(name: str) -> Iterator[tuple[str, dict[str, str], float, bool]]:
    """Each series of a fixture: name, labels, value, whether it is a counter."""
    text = (FIXTURES / f"{name}.prom").read_text(encoding="utf-8")
    counters = tuple(re.findall(r"^# TYPE (\S+) (?:counter|histogram)$", text, re.MULTILINE))
    for metric, labels, value in SAMPLE.findall(text):
        yield metric, dict(LABEL.findall(labels)), float(value), metric.startswith(counters)


def add_engine(fleet: Fleet, name: str, **target: str) -> None:
    """The engine of a fixture as a target."""
    for metric, labels, value, counts in samples(name):
        if counts:
            fleet.counter(metric, value / RECORDED_SECONDS, None, **labels, **target)
        else:
            fleet.gauge(metric, value, **labels, **target)


def staged(minutes: int = END_MINUTE) -> Fleet:
    return Fleet(minutes, groups=group_names(*FILES))


def pod(name: str, namespace: str = "llm") -> dict[str, str]:
    """The owner of a GPU."""
    return {"workload_namespace": namespace, "workload_pod": name, "pod_uid": f"uid-{name}"}


def vllm(fleet: Fleet, running: Signal, waiting: Signal = 0, **target: str) -> None:
    labels = {"job": "engines", "instance": f"{target.get('pod')}:8000", **target}
    fleet.gauge("vllm:num_requests_running", running, model_name="m", **labels)
    fleet.gauge("vllm:num_requests_waiting", waiting, model_name="m", **labels)


def test_each_engine_is_read(tmp_path: Path) -> None:
    """As a pod that two jobs scrape, and as a process on a machine."""
    assert sorted(path.stem for path in FIXTURES.glob("*.prom")) == sorted(EXPECTED)
    fleet = staged()
    for name in EXPECTED:
        for job in ("podmonitor", "annotations"):
            add_engine(fleet, name, namespace="llm", pod=name, instance=f"{name}:8000", job=job)
        add_engine(fleet, name, instance=f"host-{name}:8000", job="engines")
    for key, series in SERIES.items():
        phase = ',phase="prefill"' * (key == "prefill") + ',phase="decode"' * (key == "decode")
        found: dict[str, float] = {}
        for name, row in EXPECTED.items():
            if key in row:
                of_pod = f'instance="{name}:8000",namespace="llm"{phase},pod="{name}"'
                of_host = f'instance="host-{name}:8000"{phase}'
                found |= {f"{{{of}}}": row[key] for of in (of_pod, of_host)}
        fleet.expect(END_MINUTE, f"round({series}, 0.0001)", found)
    fleet.check(tmp_path)


def test_the_names_that_are_read_are_recorded_and_listed() -> None:
    """In a fixture, and in the table of engines."""
    every = rules()
    read = {name for rule in every if rule.file == "serving.yml" for name in rule.reads}
    names = read - {rule.name for rule in every} - {"kube_pod_owner"}  # of no engine
    assert names == {name for fixture in EXPECTED for name, *_ in samples(fixture)}
    engines = {re.split("[:_]", name)[0] for name in names}
    listed = re.findall(r"`(\w+:?\w+)`", section("Inference engines"))
    assert {name for name in listed if re.split("[:_]", name)[0] in engines} == names


def section(heading: str) -> str:
    """A section of the rules' README."""
    text = (RULES / "README.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


RUNNING = 'round(sum by (instance, gpu) (gpu:serving:ratio_avg10m{state="asked"}), 0.1)'
SERVES = "count by (instance, gpu) (gpu:serving:info)"


def test_engines_are_joined_to_their_gpus(tmp_path: Path) -> None:
    """Two GPUs of one engine, two engines of one GPU, an engine beside another tenant."""
    fleet = staged()
    for index in (0, 1):
        add_gpu(fleet, "parallel", Gpu(owner=pod("big")), index)
    add_gpu(fleet, "parallel", Gpu(owner=pod("other")), 2)
    add_gpu(fleet, "packed", Gpu(owners=[pod("small-a"), pod("small-b")]))
    add_gpu(fleet, "mixed", Gpu(owners=[pod("small-c"), pod("trains")]))
    # A pod of that name in another namespace is another pod.
    add_gpu(fleet, "elsewhere", Gpu(owner=pod("big", "ops")))
    for name, running in (("big", 3), ("small-a", 0), ("small-b", 2), ("small-c", 0)):
        vllm(fleet, running, namespace="llm", pod=name)
    gpus = {'{gpu="0",instance="parallel"}': 1.0, '{gpu="1",instance="parallel"}': 1.0}
    for query in (SERVES, RUNNING):
        fleet.expect(END_MINUTE, query, {**gpus, '{gpu="0",instance="packed"}': 1.0})
    parts: dict[str, dict[str, float]] = {
        "gpu:serving_gpus:count": {"parallel": 2.0, "packed": 1.0, "mixed": 0.5},
        'gpu:serving_requests:count{state="running"}': {"parallel": 3, "packed": 2, "mixed": 0},
    }
    for series, counted in parts.items():
        answer = {f'{{instance="{node}"}}': float(count) for node, count in counted.items()}
        fleet.expect(END_MINUTE, f"sum by (instance) ({series})", answer)
    fleet.check(tmp_path)


def test_without_pods_the_scrape_says_which_gpus_it_has(tmp_path: Path) -> None:
    """By Slurm job, by UUID, or all of a node."""
    fleet = staged()
    slurm, user = {"slurm_job_id": "7", "user": "ada"}, {"user": "eve"}
    add_gpu(fleet, "slurm", Gpu(owner=slurm))
    add_gpu(fleet, "slurm", Gpu(owner={**slurm, "slurm_job_id": "8"}), 1)
    for index in (0, 1):
        add_gpu(fleet, "single", Gpu(owner=user), index)
        add_gpu(fleet, "whole:10170", Gpu(owner=user), index)
    # One engine that is scraped as of its GPU and of its node, beside another user's job.
    add_gpu(fleet, "twice", Gpu(owners=[user, {"user": "ada"}]))
    for name in ("slurm-7", "GPU-single-1", "whole:10170", "GPU-twice-0", "twice"):
        vllm(fleet, 1, pod=name)
    found = ("slurm", 0), ("single", 1), ("whole:10170", 0), ("whole:10170", 1)
    expected = {f'{{gpu="{index}",instance="{node}"}}': 1.0 for node, index in found}
    fleet.expect(END_MINUTE, SERVES, expected)
    fleet.expect(END_MINUTE, RUNNING, expected)
    fleet.check(tmp_path)


def test_two_ports_of_a_pod_are_one_engine(tmp_path: Path) -> None:
    fleet = staged()
    add_gpu(fleet, "node", Gpu(owner=pod("twice")))
    for port, running in ((8000, 0), (8001, 4)):
        vllm(fleet, running, namespace="llm", pod="twice", instance=f"10.0.0.1:{port}")
    of_pod = "sum by (pod) (serving:requests_running:count)"
    fleet.expect(END_MINUTE, of_pod, {'{pod="twice"}': 4.0})
    fleet.expect(END_MINUTE, RUNNING, {'{gpu="0",instance="node"}': 1.0})
    fleet.check(tmp_path)


def test_ranks_of_data_parallelism_add_up(tmp_path: Path) -> None:
    """Of SGLang, which numbers them by tp_rank, too; the first may have no request."""
    fleet = staged()
    add_gpu(fleet, "node", Gpu(owner=pod("dp")))
    for rank, running in enumerate((0, 9, 9, 9)):
        ranks = {"tp_rank": f"{rank}", "dp_rank": f"{rank}", "moe_ep_rank": f"{rank}"}
        labels = {**ranks, "namespace": "llm", "pod": "dp", "instance": "dp:30000", "pp_rank": "0"}
        fleet.gauge("sglang:num_running_reqs", running, job="engines", **labels)
        rate = running / 9
        fleet.counter("sglang:num_retracted_requests_total", rate, None, job="engines", **labels)
    totals = {"serving:requests_running:count": 27.0, "serving:preemptions:rate5m": 3.0}
    for series, total in totals.items():
        fleet.expect(END_MINUTE, f"round(sum by (pod) ({series}))", {'{pod="dp"}': total})
    fleet.expect(END_MINUTE, RUNNING, {'{gpu="0",instance="node"}': 1.0})
    fleet.check(tmp_path)


def test_an_engine_with_an_impossible_number_is_none(tmp_path: Path) -> None:
    """So that the sums over all tenants are those of the others."""
    fleet = staged(40)
    numbers = {"inf": math.inf, "nan": math.nan, "negative": -5.0, "large": 1e300, "right": 2.0}
    for name, running in numbers.items():
        add_gpu(fleet, name, Gpu(owner=pod(f"{name}-0")))
        vllm(fleet, running, namespace="llm", pod=f"{name}-0")
    right = {'{gpu="0",instance="right"}': 1.0}
    fleet.expect(40, SERVES, right)
    fleet.expect(40, RUNNING, right)
    fleet.expect(40, "sum(gpu:serving_requests:count)", {"{}": 2.0})
    of_right = {'{deployment="right",namespace="llm"}': 1.0}
    fleet.expect(40, "serving:replicas:needed * 1", of_right)
    fleet.check(tmp_path)


def test_the_replicas_that_a_week_needed_are_counted(tmp_path: Path) -> None:
    """Six, of which two held ten requests each at the peak; a seventh serves another model."""
    fleet = staged(40)
    for index in range(6):
        running = [(10, 10 if index < 2 else 0), (50, 0)]
        vllm(fleet, running, namespace="llm", pod=f"chat-7c9d8f6b5-x2x9{index}")
    vllm(fleet, 1, namespace="llm", pod="embed-0")
    vllm(fleet, 0, namespace="llm", pod="unused-0")
    of = '{{deployment="{}",namespace="llm"}}'.format
    counted = {of("chat"): 6.0, of("embed"): 1.0, of("unused"): 1.0}
    fleet.expect(40, "serving:replicas:count * 1", counted)
    needed = {of("chat"): 2.0, of("embed"): 1.0, of("unused"): 0.0}
    fleet.expect(40, "serving:replicas:needed * 1", needed)
    fleet.check(tmp_path)


def test_gaps_end_and_restarts_count_once(tmp_path: Path) -> None:
    fleet = staged(40)
    labels = {"namespace": "llm", "pod": "a-0", "instance": "a:8000", "job": "engines"}
    fleet.gauge("vllm:num_requests_running", [(20, 3), (3, None), (7, 3), (20, None)], **labels)
    fleet.counter("vllm:request_success_total", 1.0, 20, **labels)
    for minute, answer in ((22, 3), (29, 3), (34, 3)):
        found = {'{pod="a-0"}': float(answer)}
        fleet.expect(minute, "sum by (pod) (serving:requests_running:count)", found)
    fleet.expect(37, "serving:requests_running:count", {})
    fleet.expect(22, "serving:requests_finished:rate5m > 1.01", {})
    fleet.check(tmp_path)


MINUTES = 90


@pytest.mark.parametrize("half", [0, 1], ids=["each minute", "every other minute"])
def test_what_holds_up_an_engine(half: int, tmp_path: Path) -> None:
    fleets_of(table("engines", told="20,45,75 -"), MINUTES)[half].check(tmp_path)


@pytest.mark.first
def test_a_day_of_replicas(tmp_path: Path) -> None:
    """Rules are evaluated every ten minutes, so each group after those that it reads."""
    serving = group_names(RULES / "serving.yml")
    others = [name for name in group_names(*FILES) if name not in serving]
    inputs_end = others.index("gpu-day")
    order = [*others[:inputs_end], *serving, *others[inputs_end:]]
    fleet = Fleet(24 * 60, groups=order, evaluation_interval="10m", without=ASIDE)
    add_scenes(fleet, "served_all_day")
    fleet.check(tmp_path)


UNEVEN = 'count by (instance) (ALERTS{alertname="GpuRequestsQueued",cause="load_imbalance"})'


def test_a_queue_beside_a_replica_without_is_told(tmp_path: Path) -> None:
    """Where that has half as many requests at most; all replicas with a queue are even."""
    fleet = staged(50)
    requests = {
        "uneven": [(16, 20), (16, 4), (8, 0)],
        "nearly": [(16, 4), (11, 0)],
        "queued": [(16, 20), (4, 4)],
    }
    # A standby, pods that are of no StatefulSet, and one of which a replica is never asked.
    requests |= {
        "standby": [(16, 20), (0, 0)],
        "bare": [(10, 5), (2, 0)],
        "owned": [(9, 9), (0, 0)],
    }
    for name, replicas in requests.items():
        for index, (running, waiting) in enumerate(replicas):
            replica = f"{name}-{index}"
            owners = {"bare": ("<none>", "<none>"), "owned": ("StatefulSet", "owned")}
            if name in owners:
                kind, owner = owners[name]
                of_pod = {"namespace": "llm", "pod": replica, "job": "kube-state-metrics"}
                fleet.gauge("kube_pod_owner", 1, owner_kind=kind, owner_name=owner, **of_pod)
            add_gpu(fleet, replica, Gpu(owner=pod(replica)))
            vllm(fleet, running, waiting, namespace="llm", pod=replica)
    # One that was made anew under another owner.
    moved = {"namespace": "llm", "pod": "owned-1", "job": "kube-state-metrics"}
    fleet.gauge("kube_pod_owner", 1, owner_kind="ReplicaSet", owner_name="owned-6f5d", **moved)
    fleet.expect(
        40,
        'count by (pod) (helper:serving_replica:requests{pod="owned-1"})',
        {'{pod="owned-1"}': 1},
    )
    fleet.expect(10, UNEVEN + " < 0", {})
    told = {f'{{instance="{node}"}}': 1.0 for node in ("uneven-0", "uneven-1", "owned-0")}
    fleet.expect(40, UNEVEN, told)
    fleet.check(tmp_path)


def test_jobs_have_the_tokens_and_the_time_of_their_engines(tmp_path: Path) -> None:
    """Two GPUs of one engine, two engines of a GPU, a Slurm job, and one that trains."""
    fleet = staged(40)
    for index in (0, 1):
        add_gpu(fleet, "parallel", Gpu(owner=pod("big")), index)
    add_gpu(fleet, "packed", Gpu(owners=[pod("small-a"), pod("small-b")]))
    add_gpu(fleet, "slurm", Gpu(owner={"slurm_job_id": "7", "user": "ada"}))
    add_gpu(fleet, "trains", Gpu(owner=pod("trains")))
    of_pods = {"big": 100.0, "small-a": 0.0, "small-b": 10.0}
    for name, rate in of_pods.items():
        labels = {"namespace": "llm", "pod": name, "instance": f"{name}:8000", "job": "engines"}
        vllm(fleet, 0, namespace="llm", pod=name)  # between two requests at each scrape
        fleet.counter("vllm:prompt_tokens_total", rate * 9, None, **labels)
        fleet.counter("vllm:generation_tokens_total", rate, None, **labels)
    vllm(fleet, 0, pod="slurm-7")  # of an engine that counts no tokens, nor requests
    owners = {**dict.fromkeys(of_pods, "llm"), "": "ada"}
    tokens, used = {}, {}
    for name, owner in owners.items():
        of = f'workload_owner="{owner}"' + f',workload_pod="{name}"' * bool(name)
        if name:
            for phase, times in (("prefill", 9), ("decode", 1)):
                tokens[f'{{phase="{phase}",{of}}}'] = 600 * times * of_pods[name]
        gpus = {"big": 2.0, "": 1.0}.get(name, 0.5)
        asked = bool(of_pods.get(name))
        used[f'{{demand="some",{of}}}'] = 600 * gpus * asked
        used[f'{{demand="none",{of}}}'] = 600 * gpus * (not asked)
    sums = "round(sum by (workload_pod, workload_owner, {}) (workload:serving_{}:sum10m))"
    fleet.expect(40, sums.format("phase", "tokens"), tokens)
    fleet.expect(40, sums.format("demand", "gpu_seconds"), used)
    fleet.check(tmp_path)
