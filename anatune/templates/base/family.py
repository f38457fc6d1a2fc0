"""The interface by which few programs are chosen for a range of extents, with a proof of how good the choice is.

Notation
--------
program : the source of one kernel that takes the extent of the ranged axis as an argument. All else is fixed, except
the launch. It is hashable, and only its family reads its fields.
reference : the best program of a single extent. The loss of a choice is relative to the reference.
limit : seconds for each extent. Programs that are slower than the limit need not be told apart.

A template that can serve ranges names its class in ``Template.ranges``: a `ProgramFamily`, which is constructed from
``(workload, hardware, **limits)`` with a `RangedWorkload` and a spec. Choice, proof, report and dispatch
(`model.ranges`) use families by this interface only. Programs of several families can be chosen together.
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

__all__ = ["FamilyBounds", "Floats", "Program", "ProgramFamily"]

Floats = NDArray[np.float64]
Program = Hashable


class FamilyBounds(NamedTuple):
    """The result of `ProgramFamily.bounds`.

    Attributes
    ----------
    seconds : (num_extents,) float64
        A time for each extent that no program of the family is predicted to go below. It never exceeds the given limit.
        If it equals the limit, no program is faster than the limit.
    faster : tuple of Program
        The best few programs that are faster than the limit at some extent.
    is_complete : bool
        False if the time limit ended the search. The bounds are then those that were proven so far.
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
        """Return the programs to choose from: the best ones of single extents and their neighbours, all different.

        There are a few hundred to a few thousand. If the time limit ends the search, they are those found so far; at
        least one of them is legal at every extent if such a program exists.
        """

    @abstractmethod
    def times(self, programs: Sequence[Program]) -> Floats:
        """Return the seconds of programs at every extent, (num_programs, num_extents) float64; inf where not legal.

        Each time is that of the fastest launch (see `schedule`) at the extent.
        """

    @abstractmethod
    def bounds(self, limits_s: Floats, watch: Watch) -> FamilyBounds:
        """Prove how fast any program of the family can be at each extent.

        Parameters
        ----------
        limits_s : (num_extents,) float64
            Seconds above which no bound is needed. Lower limits need less work.
        watch : Watch
            The time limit and the progress callback.
        """

    @abstractmethod
    def schedule(self, program: Program, extent: int) -> Schedule:
        """Return a program as the schedule of one extent, with the launch that is fastest there.

        The schedules of one program differ only in the launch and in what follows from the extent.
        """
