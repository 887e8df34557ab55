"""What would help a GPU that idles, by how much, and how good the last prediction was."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.prescription.model import Prescription, Refusal, Score
from gpu_bottleneck_exporter.sampling.collector import Collector, Sample, gauge
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

_KNOB = ("knob",)
FAMILIES = (
    gauge(
        "gpu_prescription_value",
        "What to set the knob to: num_workers (processes), cpu_limit and cpu_cores (cores), "
        "host_code, checkpoints and startup (share of the time that the GPU waits for them: 0, as "
        "they can only be removed). Absent while the GPU is busy or nothing can be prescribed.",
        _KNOB,
    ),
    gauge("gpu_prescription_current_value", "What the knob is now, in the same unit.", _KNOB),
    gauge(
        "gpu_prescription_busy_ratio",
        "Predicted busy share of the GPU after the change, 0-1. An upper bound for what is read "
        "from storage or the network, and for host_code, checkpoints and startup.",
        _KNOB,
    ),
    gauge(
        "gpu_prescription_busy_low_ratio",
        "Lower end of the interval that holds nine of ten outcomes, 0-1.",
        _KNOB,
    ),
    gauge("gpu_prescription_busy_high_ratio", "Upper end of that interval, 0-1.", _KNOB),
    gauge(
        "gpu_prescription_upper_bound",
        "1 if the predicted busy share is an upper bound, 0 if it is what to expect.",
        _KNOB,
    ),
    gauge(
        "gpu_prescription_refused",
        "1 for the reason why nothing is prescribed for a GPU that idles. Absent otherwise.",
        ("reason",),
    ),
    gauge(
        "gpu_prescription_scored_ratio",
        "Busy share that was predicted for the last change of the knob that was noticed, 0-1.",
        _KNOB,
    ),
    gauge(
        "gpu_prescription_error_ratio",
        "Busy share since that change less the predicted one, both 0-1: positive if it brought "
        "more than predicted.",
        _KNOB,
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    outlook = gpu.feeding.outlook if gpu.feeding else None
    if outlook is None:
        return
    if isinstance(outlook.advice, Prescription):
        yield from _prescribed(outlook.advice)
    if isinstance(outlook.advice, Refusal):
        yield Sample("gpu_prescription_refused", 1.0, (outlook.advice.reason,))
    if outlook.score is not None:
        yield from _scored(outlook.score)


def _prescribed(advice: Prescription) -> Iterator[Sample]:
    knob = (advice.knob,)
    yield Sample("gpu_prescription_value", advice.value, knob)
    yield Sample("gpu_prescription_current_value", advice.current, knob)
    yield Sample("gpu_prescription_busy_ratio", advice.predicted, knob)
    yield Sample("gpu_prescription_busy_low_ratio", advice.low, knob)
    yield Sample("gpu_prescription_busy_high_ratio", advice.high, knob)
    yield Sample("gpu_prescription_upper_bound", float(advice.at_most), knob)


def _scored(score: Score) -> Iterator[Sample]:
    yield Sample("gpu_prescription_scored_ratio", score.predicted, (score.knob,))
    yield Sample("gpu_prescription_error_ratio", score.error, (score.knob,))


COLLECTOR = Collector("prescription", FAMILIES, _samples)
