"""What a template has to tell of its programs, so that few of them can be chosen for a range, and the choice proven.

Notation
--------
program : one compiled kernel that takes the extent of the ranged axis when it is called: everything is fixed but that
    extent, and what the launch says. Opaque to all but its family, hashable.
reference : the best program of one single shape; what a choice loses, it loses against that.
limit : a time for each extent; no question is asked of what is slower.

A template that can serve ranges names the class in its record (``Template.ranges``): a `ProgramFamily` that is made of
``(workload, hardware, **limits)``, a `RangedWorkload` and a spec, as its model. Choice, proof, report and dispatch
(`model.ranges`) know families by this protocol only; programs of several families are chosen together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.ranges import RangedWorkload
from anatune.templates.base.watch import Watch

__all__ = ["Bounds", "Floats", "Program", "ProgramFamily"]

Floats = NDArray[np.float64]
Program = Hashable


class Bounds(NamedTuple):
    """What `ProgramFamily.bounds` found.

    Attributes
    ----------
    seconds : (num_extents,) float64
        No program of the family is faster at each extent. Never above the limit that was asked for: where a bound is
        the limit, nothing faster exists.
    faster : tuple of Program
        Programs that are faster than the limit somewhere, the best few of them.
    is_complete : bool
        False where the time ended the search: bounds are then what was proven until then.
    """

    seconds: Floats
    faster: tuple[Program, ...] = ()
    is_complete: bool = True


class ProgramFamily(ABC):
    """The programs of one template for one ranged workload on one device.

    Guarantees: deterministic; a time depends on its program and extent only.

    Attributes
    ----------
    workload : RangedWorkload
        Its ``numbers``, (num_extents,) int64 ascending, are the extents of all arrays here.
    """

    template: ClassVar[str]

    def __init__(self, workload: RangedWorkload, hardware: GpuSpec | CpuSpec) -> None:
        self.workload, self.hardware = workload, hardware

    @abstractmethod
    def candidates(self, watch: Watch) -> Sequence[Program]:
        """Return programs among which a good choice is: the best of single extents and their neighbours, all different.

        A few hundred to a few thousand. Where the time ends, those found until then, at least one that is legal at
        every extent if there is any.
        """

    @abstractmethod
    def times(self, programs: Sequence[Program]) -> Floats:
        """Return seconds of programs at every extent, (num_programs, num_extents) float64; inf: not legal there.

        With the launch (`schedule`) that is fastest at each extent.
        """

    @abstractmethod
    def bounds(self, limits_s: Floats, watch: Watch) -> Bounds:
        """Prove how fast any program of the family can be at each extent.

        Parameters
        ----------
        limits_s : (num_extents,) float64
            What nobody needs to know better: bounds end there. The lower, the less work.
        watch : Watch
            When to stop, and whom to tell how far it is.
        """

    @abstractmethod
    def schedule(self, program: Program, extent: int) -> Schedule:
        """Return a program as the schedule of one extent, with the launch that is fastest there.

        Of one program all schedules differ only in what follows from the extent, and in what the launch says.
        """
