"""What a schedule of the template "triton" becomes: the text of a Python module, and how its kernels are launched."""

from __future__ import annotations

import msgspec

from anatune.emit.buffer import Buffer
from anatune.templates.gpu.kernel import tensors_of
from anatune.templates.gpu.ranged import Growth, Ranged

__all__ = ["TritonKernel", "TritonProgram"]


class TritonKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function of a Triton module and how it is compiled and launched. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        The function that ``triton.jit`` decorates.
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them, all multiples of 16 bytes. In a program for a range the
        extent follows as an integer of 32 bits; the function takes nothing else.
    grid : int
        Programs, along x.
    num_warps, num_stages : int
        Compile options.
    options : dict of str to bool, int or str
        Further compile options; whether multiplications and additions are fused is said, since the default changes.
    growth : Growth or None
        How `grid`, that of the largest extent, follows from the extent of a range; None: it does not.
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
    """A Triton module of one schedule. Immutable; JSON both ways.

    Attributes
    ----------
    schedule_key : str
        Key of the schedule it was made from.
    source : str
        A Python module that imports ``triton`` and ``triton.language`` only.
    kernels : tuple of TritonKernel
        In the order in which they are launched, each when the one before has ended: the principal one, and where sums
        are made in parts the one that adds these up.
    result : str
        Tensor that is written.
    workspace : Buffer or None
        Parts of sums, which the first kernel writes and the second reads; between runs it holds nothing.
    further : tuple of str
        Tensors that are written beside the result (`Workload.further`).
    ranged : Ranged or None
        The axis whose extent every kernel takes as its last argument. Grids, shapes and the workspace are those of the
        largest extent; `at` returns those of another one.
    extent : int or None
        The extent that `at` was called with: the argument's value.
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
        """Return the program for one extent of its range: the same text with the grids, shapes and argument for it.

        Raises
        ------
        RunError
            It has no range, or its range lacks this extent.
        """
        Ranged.check(self.kernels[0].name, self.ranged, extent)
        return msgspec.structs.replace(self, kernels=tuple(one.at(extent) for one in self.kernels), extent=extent)

    @property
    def tensors(self) -> dict[str, Buffer]:
        """The user's tensors by name: what any of the kernels takes, without the workspace."""
        return tensors_of(self.kernels, self.workspace)
