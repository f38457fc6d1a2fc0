"""The kernels of a plan for a range as one function of NumPy arrays of any extent."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from anatune.arguments import quote
from anatune.codegen.cpu.dispatch import Dispatch, RangeArtifact, build_range, make_dispatch
from anatune.core.workload.ranges import make_ranged_workload
from anatune.errors import BuildError, RunError, SpaceError
from anatune.files import remove_folder_with, scratch_folder
from anatune.measure.cpu.kernel import Constants, Kernel, check_instructions
from anatune.measure.run.correctness import Array, Verification, compute_expected, random_inputs
from anatune.model.ranges.plan import RangePlan


class RangeKernel:
    """A built range: ``kernel(*arrays)`` computes on arrays of any extent of the range in the workload's layouts.

    Constants are packed once for all extents, or once for each packed layout if kernels differ; `Kernel` describes when
    they are packed again. Several threads may call it at once.

    Attributes
    ----------
    artifact : RangeArtifact
    """

    def __init__(self, artifact: RangeArtifact, folder: Path | None = None) -> None:
        self.artifact = artifact
        self._kernels: dict[int, Kernel] = {}
        self._constants: Constants = {}
        if folder is not None:
            remove_folder_with(self, folder)
        dispatch = artifact.dispatch
        workload = dispatch.schedules[0].workload
        self._place = next(
            (place, access.tensor) for place, access in enumerate(workload.operands) if access.uses(dispatch.axis)
        )

    def __call__(self, *arrays: Array) -> Array:
        """Return the result for `arrays`: the workload's reads, then its epilogue's.

        Raises
        ------
        RunError
            The number of arrays, a shape, a dtype or the extent is wrong.
        """
        position, tensor = self._place
        if len(arrays) <= position or not getattr(arrays[position], "shape", ()):
            raise RunError(f"operand {tensor} is missing or {quote(arrays[position:])}, expected an array")
        try:
            kernel = self.at(arrays[position].shape[0])
        except SpaceError as error:
            raise RunError(f"operand {tensor} has shape {arrays[position].shape}: {error}") from None
        return kernel(*arrays)

    def at(self, extent: int) -> Kernel:
        """Return the kernel of one extent.

        Raises
        ------
        SpaceError
            The extent is outside of the range.
        """
        if extent not in self._kernels:
            schedule, artifact = self.artifact.at(extent)
            self._kernels[extent] = Kernel(schedule.workload, artifact, constants=self._constants)
        return self._kernels[extent]

    __deepcopy__, __reduce__ = Kernel.__deepcopy__, Kernel.__reduce__

    def verify(self, extent: int, seed: int = 0) -> Verification:
        """Compare the result for random operands of one extent with float64, with guard zones around all arrays.

        Raises
        ------
        SpaceError
            The extent is outside of the range.
        """
        dispatch, kernel = self.artifact.dispatch, self.at(extent)
        workload = make_ranged_workload(dispatch.schedules[0].workload, dispatch.axis, (extent,)).largest
        inputs = random_inputs(workload, seed)
        want = compute_expected(workload, inputs)
        answer = kernel.prepare(inputs, guarded=True).check(workload, want)
        return Verification(answer.ok, answer.max_rel_error, answer.message, want.tolerance)


def load_range(dispatch: Dispatch, threads: int = 1) -> RangeKernel:
    """Compile the kernels of a range into one library and load it into this process.

    Raises
    ------
    SpaceError, BuildError, RunError, MissingDependencyError
        As `build_range`; this machine lacks their instructions.
    """
    hardware = dispatch.schedules[0].hardware
    assert hardware.kind == "cpu"
    check_instructions(hardware)
    folder = scratch_folder(BuildError)
    try:
        return RangeKernel(build_range(dispatch, folder, threads=threads), folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def build(plan: RangePlan, threads: int) -> RangeKernel:
    """Compile a plan for a range and load it into this process; see `anatune.build`."""
    return load_range(make_dispatch(plan), threads)


def verify(plan: RangePlan, threads: int, seed: int) -> Verification:
    """Run the kernels of a plan at the ends of the intervals that they serve; see `anatune.verify`."""
    kernel, worst = build(plan, threads), Verification(True, 0.0)
    for extent in plan.telling_extents():
        answer = kernel.verify(extent, seed)
        if not answer.ok:
            return msgspec.structs.replace(answer, message=f"{plan.workload.axis}={extent}: {answer.message}")
        worst = max(worst, answer, key=lambda known: known.max_rel_error or 0.0)
    return worst
