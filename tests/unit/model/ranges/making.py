"""A family of programs that is a table of times, for tests of choices and proofs."""

import numpy as np

import anatune
from anatune.core.workload.ranges import make_ranged_workload
from anatune.templates.base.family import FamilyBounds, ProgramFamily


class TableFamily(ProgramFamily):
    """Programs are rows of a table; only some are candidates, the others are found by proofs."""

    template = "cuda"

    def __init__(self, table, shown=None, name="rtx3090"):
        count = table.shape[1]
        super().__init__(
            make_ranged_workload(anatune.matmul(count, 16, 16), "i", range(1, count + 1)), anatune.hardware(name)
        )
        self.table, self.shown = table, list(range(len(table)) if shown is None else shown)
        self.asked = []

    def candidates(self, watch):
        return self.shown

    def times(self, programs):
        return self.table[list(programs)]

    def bounds(self, limits_s, watch):
        self.asked.append(limits_s)
        best = self.table.min(axis=0)
        faster = {int(self.table[:, at].argmin()) for at in np.flatnonzero(best < limits_s)}
        return FamilyBounds(np.minimum(best, limits_s), tuple(sorted(faster)))

    def schedule(self, program, extent):
        workload = self.workload.at(extent)
        return anatune.space(workload, self.hardware, template="cuda").schedule({"k": (16, 1, 1)})


def times(num_programs, num_extents, seed=0):
    """Return times of programs that are each good around one extent, (num_programs, num_extents)."""
    rng = np.random.default_rng(seed)
    extents = np.arange(1, num_extents + 1)
    tile = rng.integers(1, num_extents + 1, num_programs)[:, None]
    return 1.0 + -(-extents // tile) * tile * (1.0 + 0.5 / tile) * rng.uniform(1.0, 1.3, (num_programs, 1))
