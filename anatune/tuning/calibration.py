"""Learning a correction during calibration: generated kernels (nests) are measured, recorded and learned from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.errors import ModelVersionError
from anatune.files import reason
from anatune.measure.cpu.calibration.nests import measure_nests
from anatune.measure.cpu.calibration.workloads import calibration_workloads
from anatune.measure.cpu.measurer import CpuMeasurer
from anatune.measure.run.measurer import Measurer
from anatune.model.learned.corrections import CALIBRATED, user_correction_folder
from anatune.model.learned.residual import ResidualOptions, import_lightgbm
from anatune.records.environment import Environment
from anatune.records.schema import Session
from anatune.records.store import RecordStore
from anatune.tuning.training import Judgement, families_of, judge, train

SOURCE = "calibrate"
"""Strategy of the recorded sessions, and source of their trials."""
OPTIONS = ResidualOptions(num_trees=40, num_leaves=4, learning_rate=0.04, min_leaf_rows=20, num_members=4)
"""A small model, because there are only a few hundred nests. A larger one ranks all nests a little better, but its
first choice is worse: the point whose time it underestimates most. Source: docs/bench/cpu.device.md."""
MIN_TRIALS = 10
_ONE_THREAD = 0.65
"""Share of the time for kernels with one thread; the rest is for kernels with all cores."""
_EACH = 3
"""Step of the workloads that are measured with all cores, because learning needs a dozen kernels of a workload."""
_LEAST_S, _FIT_S = 30.0, 12.0
"""Fewest seconds for which starting the processes is worthwhile; most seconds for learning and testing."""


class Learned(NamedTuple):
    """The result of learning during a calibration.

    Attributes
    ----------
    records : Path
        Record file of the nests.
    measured, failed : int
        Number of nests measured in this calibration, and of those that failed.
    judgement : Judgement or None
        The gain of the correction on workloads left out of its training; None if too few nests were measured.
    saved : Path or None
        Folder of the correction; None if it does not help.
    """

    records: Path
    measured: int
    failed: int
    judgement: Judgement | None
    saved: Path | None

    @property
    def summary(self) -> dict[str, object]:
        """The result as plain values for JSON."""
        return {
            "records": str(self.records),
            "measured": self.measured,
            "failed": self.failed,
            "judgement": msgspec.to_builtins(self.judgement),
            "saved": None if self.saved is None else str(self.saved),
        }


def learn_from_nests(
    hardware: CpuSpec,
    records: Path,
    *,
    budget_s: float,
    folder: Path | None = None,
    progress: Callable[[str, float], None] = lambda _stage, _share: None,
    make: Callable[..., Measurer] = CpuMeasurer,
    ran_under: Environment | None = None,
) -> Learned:
    """Measure generated nests, learn a correction of the model from all recorded nests of this machine, and test it.

    Parameters
    ----------
    hardware : CpuSpec
        The calibrated spec.
    records : Path
        Record file; the nests of earlier calibrations of the same CPU in it are used as well.
    budget_s : float
        Seconds for everything; with less than half a minute nothing more is measured.
    folder : Path, optional
        Folder of the correction; by default where plans look for corrections of this device. If the correction there
        does not help any more, it is removed, because it was made for another spec.
    make, ran_under
        Function that makes the measurer of the machine that `hardware` describes, and the environment of that machine.
        By default those of this machine.

    Raises
    ------
    RunError, RecordError, MissingDependencyError, ModelVersionError
        Nothing can be measured; the record file is damaged or cannot be written; a package is missing.
    """
    import_lightgbm()  # raise an error before anything is measured
    measured: list[Trial] = []
    if budget_s >= _LEAST_S:
        left_s = budget_s - _FIT_S
        measured = list(
            record_nests(hardware, records, budget_s=left_s, progress=progress, make=make, ran_under=ran_under)
        )
    elif not records.exists():
        return Learned(records, 0, 0, None, None)
    progress("learning", 0.0)
    failed = sum(trial.measurement.time_s is None for trial in measured)
    judgement, saved = learn_from_records(hardware, records, folder)
    return Learned(records, len(measured), failed, judgement, saved)


def record_nests(
    hardware: CpuSpec,
    records: Path,
    *,
    budget_s: float,
    progress: Callable[[str, float], None],
    make: Callable[..., Measurer] = CpuMeasurer,
    ran_under: Environment | None = None,
) -> Iterator[Trial]:
    """Measure nests with one thread and with all cores, record them and yield their trials."""
    counts = sorted({1, hardware.compute.num_cores})
    workloads = calibration_workloads()
    number = 0
    ends = time.monotonic() + budget_s
    with RecordStore(records) as store:
        for threads in counts:
            share = 1.0 if threads == counts[-1] else _ONE_THREAD
            sessions: dict[Workload, Session] = {}
            stage = f"nests, {threads} thread{'s' * (threads > 1)}"
            for workload, schedule, measurement in measure_nests(
                hardware,
                workloads if share < 1.0 or len(counts) == 1 else workloads[::_EACH],
                threads=threads,
                budget_s=share * (ends - time.monotonic()),
                progress=lambda done, stage=stage: progress(stage, done),  # type: ignore[misc]
                make=make,
            ):
                if workload not in sessions:
                    sessions[workload] = store.new_session(workload, hardware, threads, SOURCE, 0)
                trial = Trial(schedule, measurement, number, SOURCE, None, threads)
                store.append(sessions[workload], trial, ran_under)
                number += 1
                yield trial


def learn_from_records(
    hardware: CpuSpec, records: Path, folder: Path | None = None
) -> tuple[Judgement | None, Path | None]:
    """Test a correction learned from the recorded nests of this CPU; save it if it helps, else remove it.

    Predictions are made with the present spec, also for nests that were recorded with an older one.
    """
    with RecordStore(records) as store:
        recorded = [record for record in store.trials() if _is_calibration_of(record.session, hardware)]
    replace = msgspec.structs.replace
    rebased = [replace(record, session=replace(record.session, hardware=hardware)) for record in recorded]
    families = [family for family in families_of(rebased, MIN_TRIALS) if len(family.workloads) >= _LEAST_WORKLOADS]
    target = folder or user_correction_folder() / f"{hardware.name}_cpu_{CALIBRATED}"
    if not families:
        _remove(target)
        return None, None
    family = families[0]._replace(kernels=CALIBRATED)
    judgement = judge(family, options=OPTIONS)
    if not judgement.first_helps:
        _remove(target)
        return judgement, None
    return judgement, train(family, judgement, str(records), target, OPTIONS)


_LEAST_WORKLOADS = 5
"""Fewest workloads for testing whether a correction helps on other workloads."""


def _is_calibration_of(session: Session, hardware: CpuSpec) -> bool:
    """Return whether a session was recorded by a calibration of this CPU."""
    measured_on = session.hardware
    return (
        session.strategy == SOURCE
        and measured_on.kind == "cpu"
        and (measured_on.model, measured_on.arch, measured_on.compute.num_cores)
        == (hardware.model, hardware.arch, hardware.compute.num_cores)
    )


def _remove(folder: Path) -> None:
    """Remove a correction that does not help."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise ModelVersionError(
            f"{folder}: {reason(error)}; remove this folder, its correction is out of date"
        ) from None
