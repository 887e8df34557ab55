"""Prescription for the demo's slow loader: alone on the machine, as a free core is part of it."""

from __future__ import annotations

import pytest

from gpu_bottleneck_exporter.demo.jobs import JOBS
from gpu_bottleneck_exporter.demo.run import running
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, Prescription, Refusal
from gpu_bottleneck_exporter.settings import Settings
from support.samplers import sampling
from support.waiting import until


@pytest.mark.alone
def test_more_workers_for_the_loader_that_waits_is_a_prescription() -> None:
    (index,) = next(job.gpus for job in JOBS if job.name == "slow-worker")
    with running() as board, sampling(lambda: VirtualDriver(board), Settings()) as sampler:
        uuid = board.gpus[index].record.uuid.decode()

        def advice() -> Prescription | Refusal | None:
            gpus = {gpu.identity.uuid: gpu for gpu in sampler.state().gpus}
            feeding = gpus[uuid].feeding if uuid in gpus else None
            return feeding.outlook.advice if feeding else None

        def found() -> Prescription | None:
            result = advice()
            return (
                result if isinstance(result, Prescription) and result.knob == NUM_WORKERS else None
            )

        prescribed = until(found, lambda: f"a prescription, not {advice()}")
    assert not prescribed.at_most
    assert prescribed.current_value == 1
    assert prescribed.busy_low_ratio <= prescribed.busy_ratio <= prescribed.busy_high_ratio
