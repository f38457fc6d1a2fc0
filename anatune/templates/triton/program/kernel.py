"""The program of a schedule of the template "triton": the text of a Python module, and its kernels' launches."""

from __future__ import annotations

import msgspec

from anatune.emit.buffer import Buffer
from anatune.templates.gpu.kernel import tensors_of
from anatune.templates.gpu.ranged import Growth, Ranged

__all__ = ["TritonKernel", "TritonProgram"]


class TritonKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function of a Triton module, with its compile options and launch. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        Name of the function that ``triton.jit`` decorates.
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them. All are multiples of 16 bytes. In a program for a
        range the extent follows as a 32-bit integer. There are no other parameters.
    grid : int
        Number of programs, along x.
    num_warps, num_stages : int
        Compile options.
    options : dict of str to bool, int or str
        Further compile options. Fusion of multiplications and additions is always set, since the default changes.
    growth : Growth or None
        How `grid`, which is for the largest extent, follows from the extent of a range. None: it does not.
    """

    name: str
    parameters: tuple[Buffer, ...]
    grid: int
    num_warps: int
    num_stages: int
    options: dict[str, bool | int | str]
    growth: Growth | None = None

    def at(self, extent: int) -> TritonKernel:
        """Return the kernel with the grid and the shapes of one extent."""
        parameters = tuple(parameter.at(extent) for parameter in self.parameters)
        grid = self.grid if self.growth is None else self.growth.grid(extent)
        return msgspec.structs.replace(self, parameters=parameters, grid=grid)


class TritonProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Triton module of one schedule. Immutable; JSON both ways.

    Attributes
    ----------
    schedule_key : str
        Key of the schedule.
    source : str
        Text of a Python module that imports only ``triton`` and ``triton.language``.
    kernels : tuple of TritonKernel
        Kernels in the order of their launches. Each begins when the one before has ended. The principal kernel is
        first. If sums are split, a second kernel adds up the parts.
    result : str
        Tensor that is written.
    workspace : Buffer or None
        Memory for parts of sums, which the first kernel writes and the second reads. It holds nothing between runs.
    further : tuple of str
        Tensors that are written in addition to the result (`Workload.further`).
    ranged : Ranged or None
        The axis whose extent every kernel takes as its last argument. Grids, shapes and the workspace are those of the
        largest extent; `at` returns those of another extent.
    extent : int or None
        The extent that `at` set: the value of the argument.
    """

    schedule_key: str
    source: str
    kernels: tuple[TritonKernel, ...]
    result: str
    workspace: Buffer | None = None
    further: tuple[str, ...] = ()
    ranged: Ranged | None = None
    extent: int | None = None

    def at(self, extent: int) -> TritonProgram:
        """Return the program for one extent of its range: the same text with that extent's grids, shapes and argument.

        Raises
        ------
        RunError
            The program is not for a range, or the extent is not in it.
        """
        Ranged.check(self.kernels[0].name, self.ranged, extent)
        return msgspec.structs.replace(self, kernels=tuple(one.at(extent) for one in self.kernels), extent=extent)

    @property
    def tensors(self) -> dict[str, Buffer]:
        """The user's tensors by name: all parameters of the kernels except the workspace."""
        return tensors_of(self.kernels, self.workspace)
