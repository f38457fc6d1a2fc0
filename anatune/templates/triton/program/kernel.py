"""What a schedule of the template "triton" becomes: the text of a Python module, and how its kernels are launched."""

from __future__ import annotations

import msgspec

from anatune.emit.buffer import Buffer

__all__ = ["TritonKernel", "TritonProgram"]


class TritonKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function of a Triton module and how it is compiled and launched. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        The function that ``triton.jit`` decorates.
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them; it takes nothing else. All are multiples of 16 bytes.
    grid : int
        Programs, along x.
    num_warps, num_stages : int
        Compile options.
    options : dict of str to bool, int or str
        Further compile options; whether multiplications and additions are fused is said, since the default changes.
    """

    name: str
    parameters: tuple[Buffer, ...]
    grid: int
    num_warps: int
    num_stages: int
    options: dict[str, bool | int | str]


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
    """

    schedule_key: str
    source: str
    kernels: tuple[TritonKernel, ...]
    result: str
    workspace: Buffer | None = None
    further: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, Buffer]:
        """The user's tensors by name: what any of the kernels takes, without the workspace."""
        own = "" if self.workspace is None else self.workspace.tensor
        return {
            parameter.tensor: parameter
            for kernel in self.kernels
            for parameter in kernel.parameters
            if parameter.tensor != own
        }
