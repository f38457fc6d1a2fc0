"""Kernels of a model beside products and rows, as functions of a Relax module: windows, reductions, moves."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from anatune.codegen.compat import parse_program
from anatune.codegen.cpu.moves import ConcatKernel, PermuteKernel, concat_program, permute_program
from anatune.codegen.cpu.reductions import ReductionKernel, reduction_program
from anatune.codegen.cpu.windows import WindowKernel, window_program
from anatune.codegen.relax.kernels import KERNEL, OPAQUE, ModelKernel
from anatune.core.hardware.spec import CpuSpec
from anatune.graph.concatenations import CONCAT
from anatune.graph.nodes import Graph, Node, tensor_type
from anatune.graph.reductions import REDUCTION
from anatune.graph.windows import WINDOW

__all__ = ["other_kernels"]

_DTYPE = "float32"


class _Kind(NamedTuple):
    """An operator of anatune's: its word in names of functions, what a node asks for, and the code of that."""

    word: str
    kernel_of: Callable[[Node], Any]
    program: Callable[[Any, str, int, CpuSpec], tuple[str, str]]


def other_kernels(graph: Graph, hardware: CpuSpec, threads: int) -> dict[int, ModelKernel]:
    """Return ``id`` of each window, reduction, concatenation and transpose -> its kernel, which equal nodes share."""
    made: dict[Hashable, ModelKernel] = {}
    found = {}
    for node in graph.nodes():
        if node.op in _KINDS and tensor_type(node).dtype == _DTYPE and 0 not in tensor_type(node).shape:
            kind = _KINDS[node.op]
            kernel = kind.kernel_of(node)
            if kernel not in made:
                name = f"anatune_{kind.word}_{len(made)}_{kernel.kind}"
                function = parse_program(*kind.program(kernel, name, threads, hardware))
                attributes = {"global_symbol": name, KERNEL: kernel.kind, "op_pattern": OPAQUE}
                made[kernel] = ModelKernel(name, function.with_attr(attributes), {})
            found[id(node)] = made[kernel]
    return found


def _window(node: Node) -> WindowKernel:
    batch, blocks, *sizes, channels = tensor_type(node.arguments[0]).shape
    return WindowKernel(batch=batch, blocks=blocks, channels=channels, sizes=(sizes[0], sizes[1]), **node.attributes)


def _window_program(kernel: WindowKernel, name: str, threads: int, hardware: CpuSpec) -> tuple[str, str]:
    return window_program(
        kernel,
        name,
        threads,
        lanes=hardware.fp32_lanes,
        registers=hardware.compute.num_vector_registers,
        caches=(hardware.l1.size_bytes, hardware.l2.size_bytes),
    )


def _reduction(node: Node) -> ReductionKernel:
    return ReductionKernel(node.attributes["kind"], *tensor_type(node.arguments[0]).shape)


def _reduction_program(kernel: ReductionKernel, name: str, threads: int, hardware: CpuSpec) -> tuple[str, str]:
    return reduction_program(kernel, name, threads, lanes=hardware.fp32_lanes)


def _permute(node: Node) -> PermuteKernel:
    return PermuteKernel(tensor_type(node.arguments[0]).shape, tuple(node.attributes["axes"]))


def _permute_program(kernel: PermuteKernel, name: str, threads: int, hardware: CpuSpec) -> tuple[str, str]:
    return permute_program(kernel, name, threads, lanes=hardware.fp32_lanes)


def _concat(node: Node) -> ConcatKernel:
    return ConcatKernel(tensor_type(node).shape[0], tuple(tensor_type(part).shape[1] for part in node.arguments))


def _concat_program(kernel: ConcatKernel, name: str, threads: int, hardware: CpuSpec) -> tuple[str, str]:
    return concat_program(kernel, name, threads, lanes=hardware.fp32_lanes)


_KINDS: dict[str, _Kind] = {
    CONCAT: _Kind("moves", _concat, _concat_program),
    "permute_dims": _Kind("moves", _permute, _permute_program),
    WINDOW: _Kind("windows", _window, _window_program),
    REDUCTION: _Kind("reduction", _reduction, _reduction_program),
}
