"""Corrections learned from a user's own records: training, and testing on workloads and devices that were left out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.naming import named_workload
from anatune.errors import RecordError, SpaceError
from anatune.model.learned.corrections import Card, DataSource, save_correction, user_correction_folder
from anatune.model.learned.cross_fit import MeasuredPoints, cross_fit, fit_residual
from anatune.model.learned.residual import ResidualOptions
from anatune.records.export import workload_text
from anatune.records.schema import Record
from anatune.templates import make_model

FOREIGN = ("autotvm", "kernel_tuner")
"""Sources of imported trials whose kernels differ from those of anatune and so get their own corrections."""
MIN_TRIALS = 20
"""Fewest successful trials of a workload that is used."""
MIN_WORKLOADS = 2
"""Fewest workloads from which a correction is trained, because one is left out for testing."""
_FEW = 3
"""Fewest equal times that are no chance, because logs round times."""
LogLine = tuple[int, tuple[float, ...]]
"""Number of a measurement in its log, and its times."""
_TOP = 8
_LOST = (Outcome.LOST_DEVICE, Outcome.BUILD_TIMEOUT, Outcome.RUN_TIMEOUT)
"""Outcomes that depend on more than the schedule."""

Floats = NDArray[np.float64]
_Recorded = tuple[Record, Trial]


class MeasuredWorkload(NamedTuple):
    """A workload with the number of its measured schedules, and of those that failed."""

    workload: str
    schedules: int
    failed: int


class TrainingFamily(NamedTuple):
    """The measured workloads of one device, template and kind of kernels."""

    hardware: GpuSpec | CpuSpec
    template: str
    kernels: str
    measured: list[MeasuredPoints]
    num_left_out: int = 0
    """Number of workloads with too few successful trials."""

    @property
    def workloads(self) -> list[MeasuredWorkload]:
        """The workloads of the training data, each once."""
        counts: dict[str, list[int]] = {}
        for points in self.measured:
            count = counts.setdefault(str(points.workload), [0, 0])
            count[0] += len(points.time_s)
            count[1] += int(np.isnan(points.time_s).sum())
        return [MeasuredWorkload(name, *count) for name, count in counts.items()]

    @property
    def name(self) -> str:
        """The name of its correction."""
        return f"{self.hardware.name}_{self.template}" + ("" if self.kernels == "anatune" else f"_{self.kernels}")


class Quality(msgspec.Struct, frozen=True):
    """Measures of how well predicted times rank the schedules of workloads, as medians over the workloads."""

    spearman: float
    top8_regret: float
    """Best measured time among the first eight over the best measured time."""
    first_regret: float = 1.0
    """Measured time of the first choice over the best measured time, geometric mean over the workloads."""
    worst_first: float = 1.0
    """The same ratio for the workload where it is largest."""


class Judgement(msgspec.Struct, frozen=True):
    """A test of a correction on workloads and devices left out of its training; None if nothing could be left out.

    Attributes
    ----------
    num_workloads, num_trials, num_failed : int
        The size of the training data.
    plain, by_workload
        The analytical model alone; the corrected model, tested on each workload after training on the others.
    plain_by_device, by_device
        The same, tested on the device after training on the others.
    """

    num_workloads: int
    num_trials: int
    num_failed: int
    plain: Quality | None
    by_workload: Quality | None
    plain_by_device: Quality | None
    by_device: Quality | None

    @property
    def helps(self) -> bool:
        """True if it ranks left-out workloads better than the analytical model, and in no measure worse."""
        if self.plain is None or self.by_workload is None:
            return False
        better = self.by_workload.spearman - self.plain.spearman, self.plain.top8_regret - self.by_workload.top8_regret
        return min(better) >= 0.0 and max(better) > 0.0

    @property
    def first_helps(self) -> bool:
        """True if it ranks left-out workloads better, and its first choice is better as well."""
        if self.plain is None or self.by_workload is None:
            return False
        plain, corrected = self.plain, self.by_workload
        return corrected.spearman > plain.spearman and corrected.first_regret < plain.first_regret


def families_of(records: Iterable[Record], min_trials: int = MIN_TRIALS) -> list[TrainingFamily]:
    """Group records into families: one for each device, template and kind of kernels.

    A schedule that was measured several times counts with the median of its times, and as failed if it failed every
    time. Workloads with fewer than `min_trials` successful schedules are left out.

    Raises
    ------
    RecordError
        One log of another tuner was imported as two workloads, which would make tests on left-out workloads worthless.
    """
    by_family: dict[tuple[str, str, str], dict[tuple[Workload, int], list[_Recorded]]] = {}
    for record in records:
        trial = record.trial
        if trial.measurement.outcome in _LOST:
            continue
        kernels = trial.source if trial.source in FOREIGN else "anatune"
        family = by_family.setdefault((record.session.hardware.name, trial.schedule.template, kernels), {})
        family.setdefault((record.session.workload, trial.threads), []).append((record, trial))
    families = []
    for (_, template, kernels), workloads in by_family.items():
        _check_names(workloads)
        measured = [_measured_points(trials, template) for trials in workloads.values()]
        kept = [
            points for points in measured if points is not None and int(np.isfinite(points.time_s).sum()) >= min_trials
        ]
        if kept:
            hardware = next(iter(workloads.values()))[-1][0].session.hardware
            families.append(TrainingFamily(hardware, template, kernels, kept, len(measured) - len(kept)))
    return families


def log_lines_of(trials: Iterable[Trial]) -> set[LogLine]:
    """Return the lines of a log from which imported trials with times come."""
    return {(trial.number, trial.measurement.times_s) for trial in trials if trial.measurement.times_s}


def shared_lines(lines: set[LogLine], other: set[LogLine]) -> int:
    """Return the number of shared lines if two sets come from one log, else 0."""
    shared = lines & other
    return len(shared) if len({times for _, times in shared}) >= _FEW and 2 * len(shared) > len(lines) else 0


def _check_names(workloads: Mapping[tuple[Workload, int], Sequence[_Recorded]]) -> None:
    """Raise RecordError if most lines of an imported log were also imported as another workload."""
    lines_by_workload: dict[Workload, set[LogLine]] = {}
    for (workload, _), trials in workloads.items():
        log_lines = log_lines_of(trial for record, trial in trials if "imported" in record.session.settings)
        for other, lines in lines_by_workload.items():
            if shared := shared_lines(log_lines, lines):
                raise RecordError(
                    f"{shared} imported trials of {workload_text(workload)} are also recorded as "
                    f"{workload_text(other)}: one log was imported as two workloads; import it into a new record file "
                    "as the right one"
                )
        lines_by_workload[workload] = log_lines


def _measured_points(trials: Sequence[_Recorded], template: str) -> MeasuredPoints | None:
    """Return the points of one workload on one device with their median times; None if none fits the template."""
    session = trials[-1][0].session
    hardware = session.hardware
    if hardware.most_threads:
        hardware = hardware.with_threads(min(trials[-1][1].threads, hardware.most_threads))
    model = make_model(session.workload, hardware, template)
    times: dict[bytes, list[float]] = {}
    points: dict[bytes, NDArray[np.int64]] = {}
    for _, trial in trials:
        try:
            point = model.space.point_of(trial.schedule)
        except SpaceError:
            continue
        points.setdefault(point.tobytes(), point)
        point_times = times.setdefault(point.tobytes(), [])
        if trial.measurement.time_s is not None:
            point_times.append(trial.measurement.time_s)
    if not points:
        return None
    table = model.feature_table(np.array(list(points.values()), dtype=np.int64))
    time_s = np.array([statistics.median(times[key]) if times[key] else np.nan for key in points])
    # one name for the same computation, such as an einsum and the product that it is
    return MeasuredPoints(workload_text(named_workload(session.workload)), hardware.name, table, time_s)


def judge(
    family: TrainingFamily,
    others: Sequence[TrainingFamily] = (),
    options: ResidualOptions | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Judgement:
    """Test a correction of a family by leave-one-workload-out and leave-one-device-out cross-validation.

    Parameters
    ----------
    others : sequence of TrainingFamily
        All families; those of the same template and kernels on other devices serve for leaving out the device.
    progress : callable, optional
        Called with the share that is done, in [0, 1].

    Raises
    ------
    MissingDependencyError
        LightGBM or scikit-learn is not installed.
    """
    own_points = family.measured
    time_s = np.concatenate([points.time_s for points in own_points])
    related = [other for other in others if (other.template, other.kernels) == (family.template, family.kernels)]
    together = [points for other in related for points in other.measured]
    by_device = plain_by_device = None
    has_others = len({points.device for points in together}) > 1
    first = 0.5 if has_others else 1.0
    by_workload = _quality(
        own_points, cross_fit(own_points, "workload", options, progress=lambda share: progress(first * share))
    )
    if has_others:
        times = cross_fit(together, "device", options, progress=lambda share: progress(first + (1.0 - first) * share))
        pairs = [
            (points, scored)
            for points, scored in zip(together, times, strict=True)
            if points.device == own_points[0].device
        ]
        by_device = _quality([points for points, _ in pairs], [scored for _, scored in pairs])
        plain_by_device = _quality(own_points, [points.table.time_s for points in own_points])
    return Judgement(
        len(family.workloads), len(time_s), int(np.isnan(time_s).sum()),
        _quality(own_points, [points.table.time_s for points in own_points]), by_workload, plain_by_device, by_device,
    )  # fmt: skip


def _quality(measured: Sequence[MeasuredPoints], times: Sequence[Floats | None]) -> Quality | None:
    """Return the quality of predicted times; None if a workload has none."""
    from scipy.stats import spearmanr

    if not measured or any(scored is None for scored in times):
        return None
    ranks, regrets, firsts = [], [], []
    for points, scored in zip(measured, times, strict=True):
        assert scored is not None
        good = np.isfinite(points.time_s)
        ranks.append(float(spearmanr(scored[good], points.time_s[good])[0]))
        order = np.lexsort((scored, points.table.rule != 0))
        slower = np.where(good, points.time_s, np.inf)[order] / np.nanmin(points.time_s)
        regrets.append(float(slower[:_TOP].min()))
        firsts.append(float(slower[np.isfinite(slower)][0]))  # the first one that did not fail
    first = float(np.exp(np.mean(np.log(firsts))))
    return Quality(float(np.nanmedian(ranks)), float(np.median(regrets)), first, max(firsts))


def train(
    family: TrainingFamily,
    judgement: Judgement,
    source: str,
    folder: Path | None = None,
    options: ResidualOptions | None = None,
) -> Path:
    """Train a correction on all measured points of a family, and save it.

    Parameters
    ----------
    source : str
        The origin of the records, for the card.
    folder : Path, optional
        Where to save it; by default where `anatune.plan` and `predict` look for corrections of this device.

    Returns
    -------
    Path
        The folder of the correction.

    Raises
    ------
    RecordError
        Too little was measured.
    ModelVersionError
        The folder cannot be written.
    """
    if len(family.workloads) < MIN_WORKLOADS:
        raise RecordError(
            f"{source}: only {len(family.workloads)} workload of {family.hardware.name} has {MIN_TRIALS} successful "
            f"trials, expected at least {MIN_WORKLOADS} workloads; tune more of them"
        )
    model = fit_residual(family.measured, options)
    data = DataSource(
        source, "the user's own", "anatune records", (family.hardware.name,),
        tuple(workload.workload for workload in family.workloads), judgement.num_trials, judgement.num_failed,
    )  # fmt: skip
    card = Card(
        name=family.name, kernels=family.kernels, template=family.template, devices=(family.hardware.name,), vendors=(),
        data=(data,), metrics=msgspec.to_builtins(judgement), feature_names=(),
        low=(), high=(), offset=0.0, noise=0.0, files={},
        versions={}, options=model.options,
    )  # fmt: skip
    target = folder or user_correction_folder() / family.name
    save_correction(target, card, model)
    return target
