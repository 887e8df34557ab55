"""The arithmetic of a report, on documents as nodes serve them."""

from __future__ import annotations

import json

import pytest

from gpu_bottleneck_exporter.commands.report import RENDERERS, select
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.jobs.model import Job
from gpu_bottleneck_exporter.remedies import REMEDIES
from gpu_bottleneck_exporter.report import ledgers
from gpu_bottleneck_exporter.report.about import about, change, do_first, slow_line, slowest
from report import documents
from report.documents import HOUR, NOW, Fields, advised, bill, document, example, gpu, job, read


def jobs(*documents: Fields) -> list[Job]:
    return read(*documents).jobs


def one(*gpus: Fields) -> Job:
    (result,) = jobs(document("node7", job("slurm-1", *gpus)))
    return result


def test_the_example_of_two_nodes() -> None:
    (result,) = jobs(*example())
    nodes = {gpu.node for gpu in result.gpus}
    assert (len(result.gpus), len(nodes), result.owner_name) == (8, 2, "ada")
    assert result.busy_ratio == pytest.approx(0.41)
    assert result.lost_seconds == pytest.approx(0.59 * 8 * 3.2 * HOUR)
    assert result.stall_ratios == pytest.approx(
        {"worker_cpu": 0.38, "asleep": 0.14, "host_code": 0.05, "unknown": 0.02}
    )
    outcome = slowest(result)
    assert outcome == "GPU 3 on node7 was the slowest: worker_cpu 52 % (the others 36 %)"


def test_the_slow_line_is_that_of_the_gpu_that_lost_most() -> None:
    ranks = [gpu(0, worker_cpu=0.2), gpu(1, worker_cpu=0.6), gpu(2, asleep=0.9)]
    for rank, function in zip(ranks[:2], ("decode", documents.HOSTILE), strict=True):
        line = {"file": "/home/ada/train.py", "line": 7, "function": function}
        shares = {"role": "worker", "ratio": 0.75, "lock_ratio": 0.2, "native_ratio": 0.0}
        line |= {"seconds": 3.0, **shares}
        rank["idle_lines"] = {"seconds": 4.0, "looks": 9, "lines": [line], "waits": []}
    result = slow_line(one(*ranks))
    assert result
    assert result.startswith("Slow line: 75 % of 4 s idle: train.py:7 <script>")
    assert result.endswith("…, 20 % of that waiting for a lock")
    assert result.isprintable()
    assert len(result) < 200
    for rank in ranks:
        rank["idle_lines"] = {}
    assert slow_line(one(*ranks)) is None


def test_the_gain_of_a_change_is_bounded_by_the_time_of_its_cause() -> None:
    (result,) = jobs(*example())
    # By the prediction 0.43 of the time of seven GPUs, and 0.63 of one; they waited 0.36 and 0.52.
    hours = f"{(7 * 0.36 + 0.52) * 3.2:.3g}"
    text = f"Use 6 loader workers (now 2) on all ranks. This would return about {hours} GPU-hours."
    assert change(result) == text
    assert do_first(result) == f"Do first: {text}"


def test_the_gain_of_a_change_is_the_time_left_over_by_the_same_work() -> None:
    rank = gpu(0, hours=1, worker_cpu=0.6)
    rank["recommendation"] = advised(1, 2, 0.5, at_most=True)
    # One hour, of which the same work at 0.5 rather than 0.4 takes four fifths.
    assert change(one(rank)) == (
        "Use 2 loader workers (now 1). This would return at most 0.2 GPU-hours."
    )


def test_a_main_process_that_waits_for_its_own_requests_is_reported_as_such() -> None:
    rank = gpu(0, hours=1, network=0.6)
    rank["recommendation"] = advised(0, 3, 0.5, cause="network", at_most=True)
    text = "Let 3 threads or loader workers make the main process's requests (now 0)"
    assert change(one(rank)) == f"{text}. This would return at most 0.2 GPU-hours."


def test_one_slow_rank_returns_the_waits_of_the_others() -> None:
    ranks = [gpu(index, hours=1, peer=0.4) for index in range(4)]
    ranks[2] = gpu(2, hours=1, worker_cpu=0.4)
    figures = {"job_gpus": 4, "job_current_busy_ratio": 0.6, "job_busy_ratio": 0.8}
    ranks[2]["recommendation"] = advised(1, 4, 0.8, **figures)
    result = one(*ranks)
    text = slowest(result)
    assert text == "GPU 2 on node7 was the slowest: worker_cpu 40 % (the others 0 %)"
    # Four GPU-hours, of which the same work at 0.8 rather than 0.6 takes three.
    text = "Use 4 loader workers (now 1) on GPU 2 on node7. This would return about 1 GPU-hours."
    assert change(result) == text


@pytest.mark.parametrize(
    "ranks",
    [
        [gpu(0, worker_cpu=0.5)],
        [gpu(0, worker_cpu=0.5), gpu(1, worker_cpu=0.48)],
        [gpu(0, worker_cpu=0.3), gpu(1, worker_cpu=0.3, peer=0.4)],
    ],
    ids=["alone", "alike", "it waits for the other"],
)
def test_no_gpu_is_the_slowest_where_none_stands_out(ranks: list[Fields]) -> None:
    assert slowest(one(*ranks)) is None


def test_without_a_recommendation_the_usual_remedy_stands_alone() -> None:
    result = one(gpu(0, storage=0.4, asleep=0.1))
    assert change(result) is None
    assert do_first(result) == f"Do first: {REMEDIES['storage']} (storage)"
    assert do_first(one(gpu(0))) is None


def test_of_several_changes_the_one_that_returns_most_is_first() -> None:
    ranks = [gpu(index, hours=1, worker_cpu=0.5) for index in range(5)]
    ranks[3]["recommendation"] = advised(0.3, 0, 0.9, knob="host_code")
    for rank, then in zip(ranks, (3, 6, 6), strict=False):
        rank["recommendation"] = advised(2, then, 0.625)
    text = "Use 6 loader workers (now 2) on 3 of 5 ranks. This would return about 0.6 GPU-hours."
    assert change(one(*ranks)) == text
    text = (
        "Cut the wait for Python code on GPU 3 on node7. This would return about 0.444 GPU-hours."
    )
    assert change(one(*ranks[2:])) == text


def test_worst_first_totals_of_all_and_a_limit() -> None:
    result = bill(
        document(
            "node7",
            job("slurm-1", gpu(0, hours=1, storage=0.5)),
            job("slurm-2", gpu(0, hours=9, storage=0.5), user="bob"),
            job("pod-1", gpu(0, hours=2, asleep=1.0), namespace="vision", pod="a", user="root"),
        ),
        limit=2,
    )
    assert [item.id for item in result.jobs] == ["slurm-2", "pod-1", "slurm-1"]
    assert result.listed == result.jobs[:2]
    assert list(result.owners) == ["bob", "vision", "ada"]
    assert result.use.lost_seconds == pytest.approx(7 * HOUR)
    assert result.use.stall_seconds == pytest.approx({"storage": 5 * HOUR, "asleep": 2 * HOUR})


def test_earlier_jobs_are_those_of_the_owner_that_had_ended() -> None:
    def past(name: str, hours_ago: float, idle: float, **owner: str) -> Fields:
        owner = owner or {"user": "ada"}
        return job(name, gpu(0, hours=1, began=NOW - hours_ago * HOUR, storage=idle), **owner)

    result = bill(
        document(
            "node7",
            past("slurm-9", 1, 0.6, user="ada", slurm_job_id="9"),
            past("slurm-8", 2.5, 0.2),
            past("slurm-7", 5, 0.4),
            past("slurm-6", 8, 0.9),
            past("slurm-5", 1.5, 1.0),
            past("slurm-4", 9, 1.0, user="bob"),
        ),
        job="9",
    )
    text = "ada's earlier jobs: 60 % busy (median of 3)"
    assert about(result, result.jobs[0])["earlier"] == text


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({"job": "1"}, ["slurm-1"]),
        ({"job": "slurm-1"}, ["slurm-1"]),
        ({"pod": "vision/train-0"}, ["pod-1"]),
        ({"owner": "vision"}, ["pod-1"]),
        ({"owner": "ada"}, ["slurm-1"]),
        ({"gpu": "node7/3"}, ["pod-1"]),
        ({"gpu": "node7:10170/3"}, ["pod-1"]),
        ({"gpu": "GPU-0"}, ["slurm-1"]),
    ],
)
def test_accepted_queries(wanted: dict[str, str], ids: list[str]) -> None:
    pod = job("pod-1", gpu(3), namespace="vision", pod="train-0")
    result = bill(document("node7", job("slurm-1", gpu(0), gpu(1)), pod), **wanted)
    assert [item.id for item in result.jobs] == ids
    if "gpu" in wanted:
        assert [len(item.gpus) for item in result.jobs] == [1]


@pytest.mark.parametrize("layout", RENDERERS)
def test_without_jobs_there_is_a_report_all_the_same(layout: str) -> None:
    assert RENDERERS[layout](bill(document("node7")))


def test_a_wrong_name_gets_the_nearest_one_unless_a_node_is_missing() -> None:
    result = read(document("node7", job("slurm-4711", gpu(0))), job="4712")
    with pytest.raises(SettingsError, match=r"no job '4712' .*\. Did you mean '4711'"):
        select(result)
    result.missing.append("node8: refused")
    with pytest.raises(ExporterError, match="as far as that could be read") as raised:
        select(result)
    assert raised.value.status == 1


def test_a_skewed_clock_is_corrected_and_reported() -> None:
    fast = job("slurm-1", gpu(0, hours=1, began=NOW - HOUR + 600))
    slow = job("slurm-1", gpu(1, hours=1, began=NOW - HOUR))
    result = read(document("node7", fast, time_seconds=NOW + 600), document("node8", slow))
    (whole,) = result.jobs
    assert (whole.start_seconds, whole.end_seconds) == (NOW - HOUR, NOW)
    for of in whole.gpus:
        assert of.timeline
        assert (of.start_seconds, of.timeline.start_seconds) == (NOW - HOUR, NOW - HOUR)
    assert result.notes == ["node7: its clock is 600 s ahead of ours; corrected"]


def test_a_node_that_was_asked_twice_counts_once() -> None:
    here, there = example()
    (whole,) = jobs(here, here, there)
    assert len(whole.gpus) == 8
    assert whole.observed_seconds == pytest.approx(8 * 3.2 * HOUR)


def part(node: str, index: int, *, hours_ago: float = 3.2, **owner: str) -> Fields:
    """A node's part of job 7, which lasted 3.2 hours there."""
    fields = {"user": "ada", "source": "cgroup", "slurm_job_id": "7", **owner}
    return document(node, job("slurm-7", gpu(index, began=NOW - hours_ago * HOUR), **fields))


@pytest.mark.parametrize(
    ("other", "jobs_found"),
    [
        (part("b1", 1), 1),
        (part("b1", 1, hours_ago=7), 1),
        (part("b1", 1, hours_ago=8), 2),
        (part("b1", 1, hours_ago=50), 2),
        (part("b1", 1, user="bob"), 2),
        (part("b1", 1, user=""), 2),
        (part("b1", 1, source="claim"), 2),
        (part("b1", 1, container_id="c"), 1),
    ],
    ids=["one job", "soon after", "later", "days later", "another user", "unknown", "claim", "pod"],
)
def test_one_number_is_one_job_of_one_user_and_source_and_time(
    other: Fields, jobs_found: int
) -> None:
    """Two clusters have the same numbers."""
    for order in ((part("a1", 0), other), (other, part("a1", 0))):
        job_rows = jobs(*order)
        assert len(job_rows) == jobs_found
        assert sum(len(whole.gpus) for whole in job_rows) == 2


def run(name: str, start: float, restarts: str = "") -> Fields:
    """A part of a run of job 7, ten minutes long, `start` seconds after the first."""
    owner = {"user": "ada", "source": "cgroup", "slurm_job_id": "7"}
    part = job(name, gpu(0, hours=1 / 6, began=NOW - HOUR + start), **owner)
    return {**part, "run": {"restarts": restarts} if restarts else {"group": f"{start}"}}


@pytest.mark.parametrize("counts", [("0", "1"), ("1", "3"), ("", "")])
def test_runs_of_one_number_are_jobs_of_their_own(counts: tuple[str, str]) -> None:
    """The first is on n1 and n2, the second on n2 and n3, or on n1 and n2, too."""
    first, second = counts
    for other in ("n1", "n3") if first else ("n1",):
        parts = [
            document("n2", run("slurm-7.1764096400123", 0, first)),
            document("n2", run("slurm-7", 612, second)),
            document(other, run("slurm-7", 610, second)),
            document("n1", run("slurm-7.1764096400456", 1, first)),
        ]
        one, two = sorted(jobs(*parts), key=lambda job: job.start_seconds or 0)
        assert {gpu.names[0] for gpu in one.gpus} == {"n1/0", "n2/0"}
        assert {gpu.names[0] for gpu in two.gpus} == {"n2/0", f"{other}/0"}
        assert one.observed_seconds == two.observed_seconds == 2 * 600
        assert two.id == "slurm-7"
        assert [*map(len, (jobs(*parts[:1]), jobs(*parts[1:3])))] == [1, 1]


def test_a_run_that_moves_to_another_node_at_once_is_another_job() -> None:
    parts = run("slurm-7", 0, "0"), run("slurm-7", 601, "1")
    result = read(document("n1", parts[0]), document("n2", parts[1]), job="7")
    select(result)
    assert [len(item.gpus) for item in result.jobs] == [1, 1]
    assert len(read(document("n1", parts[0]), document("n2", parts[0])).jobs) == 1


def test_a_run_with_a_hidden_count_on_some_nodes_is_one_job() -> None:
    parts = run("slurm-7", 0, "0"), run("slurm-7", 0)
    assert len(jobs(document("n1", parts[0]), document("n2", parts[1]))) == 1


def test_a_flood_of_rows_costs_at_most_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 16 MiB of empty rows would take half a minute, and joining them hours."""
    monkeypatch.setattr(ledgers, "_MAX_JOBS", 100)
    flood = read(document("n1", *[part("n1", 0)["jobs"][0]] * 150))
    assert len(flood.jobs) == 1
    assert flood.missing == ["n1: 50 of 150 jobs cannot be read"]
    odd = read({**document("n1"), "jobs": {"a": 1}}, {**document("n2"), "jobs": 5})
    assert len(odd.missing) == 2


def test_claims_of_two_users_are_two_jobs() -> None:
    claims = [part("a1", 0, source="claim"), part("b1", 1, source="claim", user="eve")]
    assert sorted(item.owner_name for item in jobs(*claims)) == ["ada", "eve"]


def test_a_job_that_runs_on_one_node_runs() -> None:
    part = job("slurm-1", gpu(1))
    part["gpus"][0]["end_seconds"] = None
    (whole,) = jobs(document("node7", job("slurm-1", gpu(0))), document("node8", part))
    assert whole.end_seconds is None


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": []},
        {"gpus": [{**gpu(0), "observed_seconds": -1}]},
        {"gpus": [{**gpu(0), "busy_seconds": "NaN"}]},
        {"gpus": [{**gpu(0), "stall_seconds": {"storage": 1e300}}]},
        {"gpus": "all"},
    ],
)
def test_a_job_that_cannot_be_read_is_named_and_the_rest_is_reported(fields: Fields) -> None:
    bad = {**job("slurm-2", gpu(1)), **fields}
    result = read(document("node7", job("slurm-1", gpu(0)), bad))
    assert [item.id for item in result.jobs] == ["slurm-1"]
    assert result.missing == ["node7: 1 of 2 jobs cannot be read"]


def test_jobs_that_did_not_fit_into_an_answer_are_missing() -> None:
    result = read(document("node7", job("slurm-1", gpu(0)), left_off=3))
    assert result.missing == ["node7: 3 older jobs do not fit into its answer"]


@pytest.mark.parametrize("at", [None, "now", float("nan"), 1e300, -1.0])
def test_a_document_without_a_time_is_refused(at: object) -> None:
    (result,) = read(document("node7", job("slurm-1", gpu(0)), time_seconds=at)).missing
    assert result.startswith("http://node serves no ledger of this exporter: ")


def shared(seconds: float | None) -> Fields:
    rank = gpu(0, hours=1, storage=0.5)
    return rank if seconds is None else rank | {"estimated_seconds": seconds}


@pytest.mark.parametrize("layout", ["text", "markdown", "html"])
def test_time_divided_equally_is_named(layout: str) -> None:
    sentence = "Estimated: 25 % of the GPU time is an equal share of shared GPUs, not measured"
    for seconds in (900.0, 0.0, None):
        only = bill(document("node7", job("slurm-1", shared(seconds))))
        assert (sentence in RENDERERS[layout](only)) is (seconds == 900.0)
        other = job("slurm-2", gpu(1), user="bob")
        several = RENDERERS[layout](bill(document("node7", job("slurm-1", shared(seconds)), other)))
        assert ("Estimated" in several) is (seconds == 900.0)


def test_estimated_time_is_summed_and_unknown_of_older_nodes() -> None:
    rows = [job("slurm-1", shared(900.0)), job("slurm-2", shared(0.0))]
    older = job("slurm-3", shared(None), user="bob")
    result = json.loads(RENDERERS["json"](bill(document("node7", *rows, older))))
    assert {of["id"]: of["estimated_seconds"] for of in result["jobs"]} == {
        "slurm-1": 900.0,
        "slurm-2": 0.0,
        "slurm-3": None,
    }
    owners = {of["owner"]: of["estimated_seconds"] for of in result["owners"]}
    assert owners == {"ada": 900.0, "bob": None}
    assert result["total"]["estimated_seconds"] is None
