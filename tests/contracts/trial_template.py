"""A template that is not anatune's: what a new one has to say, and no more. CPU loops cut in two, largest first."""

import numpy as np

from anatune.core.accuracy import RELAXED, STANDARD
from anatune.core.schedule import Schedule
from anatune.templates.base.model import AnalyticalModel, Rule, Shown
from anatune.templates.base.ranking import BestPoints, rank_all_points
from anatune.templates.base.space import Space
from anatune.templates.base.values import check_count, check_names, check_tiles
from anatune.templates.cpu.template import CpuTemplate

LEVELS = ("outer", "inner")
MOST_INNER = 4096


def levels_of(workload):
    return {axis.name: LEVELS for axis in workload.axes}


def check(schedule):
    check_tiles(schedule.tiles, levels_of(schedule.workload), schedule.workload.extents)
    check_count("unroll", schedule.unroll, 1)
    check_names("vector", schedule.vector, (), "tensor")
    check_names("options", schedule.options, ())


class TrialSpace(Space):
    template = "trial"

    def __init__(self, workload, hardware, is_legal):
        super().__init__(workload, hardware, is_legal)
        self.levels, self.choices = levels_of(workload), {"unroll": (1, 2, 4)}

    def schedule_of(self, point):
        values = self._values(point)
        return Schedule(self.workload, self.hardware, self.template, self._tiles(values), values[-1])

    def point_of(self, schedule):
        self._check_membership(schedule)
        return np.array([*(factor for axis in self.axes for factor in schedule.tiles[axis]), schedule.unroll])

    def schedule(self, tiles, unroll=1):
        whole = {axis: (extent, 1) for axis, extent in self.extents.items()}
        return Schedule(self.workload, self.hardware, self.template, whole | tiles, unroll).check()


class TrialModel(AnalyticalModel):
    """Seconds: one operation a cycle, and a few cycles for each inner loop nest; unrolling saves a little."""

    def __init__(self, workload, hardware):
        super().__init__(workload, hardware)
        self.space = TrialSpace(workload, hardware, self._is_legal)
        self.rules = (Rule("inner_points", "points of the inner loops", MOST_INNER),)

    def _run(self, points, task, *, full=False, compiled=None):
        points = np.atleast_2d(points)
        inner = points[:, 1:-1:2].prod(axis=1).astype(float)
        work_s = self.workload.num_points / self.hardware.compute.clock_hz * (1 + 0.1 / points[:, -1])
        calls_s = self.workload.num_points / inner * 20 / self.hardware.compute.clock_hz
        return (inner > MOST_INNER).astype(np.int64), work_s + calls_s, np.stack([work_s, calls_s])

    def _columns(self, quantities, time_s):
        ones = np.ones(quantities.shape[1])
        return {"work_s": quantities[0], "calls_s": quantities[1], "occupancy": ones, "waves": ones}

    def _select_shown(self, columns):
        return Shown(("work_s", "calls_s"), (), (), {}, [""] * len(columns["work_s"]))

    def _rank(self, top_k, watch, *, distinct):
        best = BestPoints(len(self.space.columns), top_k, lambda points: (points[:, -1],), distinct=distinct)
        return rank_all_points(self, best, 0.9 * self.workload.num_points / self.hardware.compute.clock_hz, watch)


class TrialTemplate(CpuTemplate):
    name, folder = "trial", "cpu"
    check = staticmethod(check)
    levels = staticmethod(levels_of)

    def model_class(self, workload):
        return TrialModel

    def program(self, schedule, **how):
        raise NotImplementedError


TRIAL = TrialTemplate()


# ---- one that joins the default ------------------------------------------------------------------------------


class JoinedSpace(TrialSpace):
    """Unrolling by 4 needs relaxed arithmetic."""

    template = "joined"

    def __init__(self, workload, hardware, is_legal, accuracy):
        super().__init__(workload, hardware, is_legal)
        self.choices = {"unroll": (1, 2, 4) if accuracy == RELAXED else (1, 2)}


class JoinedModel(TrialModel):
    """As many operations a cycle as make it about as fast as the template "cpu" in small matrix products."""

    per_cycle = 27.3

    def __init__(self, workload, hardware, accuracy):
        super().__init__(workload, hardware)
        self.space = JoinedSpace(workload, hardware, self._is_legal, accuracy)

    def _run(self, points, task, *, full=False, compiled=None):
        rules, _, parts = super()._run(points, task, full=full, compiled=compiled)
        return rules, (parts[0] + parts[1]) / self.per_cycle, parts / self.per_cycle

    def _rank(self, top_k, watch, *, distinct):
        best = BestPoints(len(self.space.columns), top_k, lambda points: (points[:, -1],), distinct=distinct)
        return rank_all_points(self, best, 0.0, watch)


def is_matmul(workload, hardware):
    return workload.operator == "matmul"


def accuracy_of(schedule):
    return RELAXED if schedule.unroll == 4 else STANDARD


def error_of(schedule):
    return 1e-5 * schedule.unroll


class JoinedTemplate(TrialTemplate):
    name = "joined"
    joins, is_plain_sum, all_accuracy = True, False, RELAXED
    takes = staticmethod(is_matmul)
    accuracy_of = staticmethod(accuracy_of)
    error_of = staticmethod(error_of)

    def model_class(self, workload):
        return JoinedModel


JOINED = JoinedTemplate()
