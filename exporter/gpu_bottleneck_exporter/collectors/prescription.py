"""Recommended changes for an idle GPU, their predicted gain, and the last error."""

from collections.abc import Callable

from gpu_bottleneck_exporter.prescription.model import Outlook, Prescription, Refusal, Score
from gpu_bottleneck_exporter.sampling.collector import Table, Values, collector, gauge


def _advised(outlook: Outlook, figure: Callable[[Prescription], float | None]) -> Values:
    advice = outlook.advice
    return {advice.knob: figure(advice)} if isinstance(advice, Prescription) else None


def _refused(outlook: Outlook) -> Values:
    advice = outlook.advice
    return {advice.reason: 1.0} if isinstance(advice, Refusal) else None


def _scored(outlook: Outlook, figure: Callable[[Score], float]) -> Values:
    return {outlook.score.knob: figure(outlook.score)} if outlook.score else None


FAMILIES: Table[Outlook] = {
    gauge(
        "gpu_prescription_value{knob}",
        "Recommended value of the setting: num_workers (processes), cpu_limit and cpu_cores "
        "(cores), host_code and checkpoints (always 0: they can only be removed). Absent "
        "where nothing is recommended.",
    ): lambda outlook: _advised(outlook, lambda one: one.value),
    gauge(
        "gpu_prescription_current_value{knob}", "Present value of the setting, in the same unit."
    ): lambda outlook: _advised(outlook, lambda one: one.current_value),
    gauge(
        "gpu_prescription_busy_ratio{knob}",
        "Predicted busy share of the GPU after the change, 0-1. An upper bound for waits for "
        "storage or the network, and for host_code and checkpoints.",
    ): lambda outlook: _advised(outlook, lambda one: one.busy_ratio),
    gauge(
        "gpu_prescription_busy_low_ratio{knob}",
        "Lower end of the interval that holds nine of ten outcomes, 0-1.",
    ): lambda outlook: _advised(outlook, lambda one: one.busy_low_ratio),
    gauge(
        "gpu_prescription_busy_high_ratio{knob}", "Upper end of that interval, 0-1."
    ): lambda outlook: _advised(outlook, lambda one: one.busy_high_ratio),
    gauge(
        "gpu_prescription_upper_bound{knob}",
        "1 if the predicted busy share is an upper bound, 0 if it is the expected value.",
    ): lambda outlook: _advised(outlook, lambda one: one.at_most),
    gauge(
        "gpu_prescription_job_busy_ratio{knob}",
        "Predicted mean busy share of the job's GPUs on this machine if only this rank "
        "changes, 0-1: the next slowest rank limits it. Absent for jobs with one GPU, and "
        "while unknown.",
    ): lambda outlook: _advised(outlook, lambda one: one.job_busy_ratio),
    gauge(
        "gpu_prescription_refused{reason}",
        "1 for the reason why nothing is recommended for a GPU that idles.",
    ): _refused,
    gauge(
        "gpu_prescription_scored_ratio{knob}",
        "Busy share that was predicted for the last noticed change of the setting, 0-1.",
    ): lambda outlook: _scored(outlook, lambda one: one.predicted_busy_ratio),
    gauge(
        "gpu_prescription_error_ratio{knob}",
        "Busy share since that change less the predicted one, both 0-1.",
    ): lambda outlook: _scored(outlook, lambda one: one.error_ratio),
}

COLLECTOR = collector(
    "prescription", FAMILIES, lambda gpu: gpu.feeding.outlook if gpu.feeding else None
)
