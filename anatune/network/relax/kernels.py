"""anatune's kernels as functions of a Relax module, and the packing functions of their constant operands."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from anatune.codegen.compat import TvmObject, parse_program
from anatune.codegen.cpu.lower import write_program
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.sizes import Size, is_run_time
from anatune.emit.buffer import Buffer
from anatune.errors import WorkloadError
from anatune.network.graph.nodes import FOREIGN, HALVES, Graph, Node, Scalar, iterate_values, tensor_type
from anatune.network.graph.operators import CONCAT, DIVISOR, LAYER_NORM, PUT, RECURRENCE, SCATTER, SOFTMAX, WINDOW
from anatune.network.relax.packing import Copy, copies_of
from anatune.network.relax.ranges import name_of
from anatune.templates.cpu.program.extents import FIXED, OneByOne
from anatune.templates.cpu.program.ranged import ranged_program

if TYPE_CHECKING:
    from anatune.network.kernels.attention import AttentionKernel

__all__ = [
    "KERNEL",
    "OPAQUE",
    "ModelKernel",
    "Packer",
    "RangedCalls",
    "attention_kernel",
    "kernel_function",
    "list_unplanned",
    "mark_kernel",
    "model_kernel",
    "sizes_of_concatenation",
    "write_unplanned",
]

KERNEL = "anatune.kernel"
"""Attribute that marks a function as a kernel of anatune's, which TVM's passes leave unchanged."""
_MOST_NEST_ROWS = 256
"""Rows that one loop nest of a product with any number of rows computes."""
_FEWEST_SHARED = 8
"""Fewest different concatenations of as many parts that share a kernel, which takes their sizes in each call.

A kernel takes 40 ms to compile (Zen 4, 2026-11). DenseNet-121 has 58 concatenations, and is as fast with one kernel.
"""
OPAQUE = 8
"""TVM's number for functions that are not fused."""


_KernelWriter: TypeAlias = Callable[[Any, str, int, CpuSpec], tuple[str, str]]
"""A function of (kernel, name, threads, CPU) that returns TVMScript and the LLVM IR that it calls."""
_KernelAndWriter: TypeAlias = tuple[Any, _KernelWriter]
"""A kernel, and the function that writes it."""


class RangedCalls(NamedTuple):
    """The range of an extent that a kernel takes at run time.

    For rows the schedule is that of the largest extent, for other axes that of the planned one.

    Attributes
    ----------
    axis : str
    least, most : int
        Smallest and largest extent.
    """

    axis: str
    least: int
    most: int


@dataclass(frozen=True)
class Packer:
    """A function that packs a constant operand, and the number of packed elements.

    Attributes
    ----------
    name : str
        Packers with the same name pack the same operand equally, for any kernel.
    text, llvm : str
        TVMScript of a function ``(tensor, packed)``, and LLVM IR that it calls.
    """

    name: str
    text: str
    llvm: str
    num_elements: int

    @cached_property
    def copies(self) -> tuple[Copy, ...] | None:
        """The copies that pack the operand; None if it is not only copied but computed, by `function`."""
        return None if self.llvm else copies_of(self.text)

    @property
    def function(self) -> TvmObject:
        """The packing function as TVM's."""
        return parse_program(self.text, self.llvm).with_attr("global_symbol", self.name)


@dataclass(frozen=True)
class ModelKernel:
    """One kernel of a model.

    Attributes
    ----------
    name : str
        Name of the function and prefix of the names in it; unique in the model.
    function : tvm.tirx.PrimFunc
        Takes the operands, with those of `packers` in packed form, and the result last.
    packers : dict of str to Packer
        Packing functions by tensor.
    """

    name: str
    function: TvmObject
    packers: dict[str, Packer]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of sizes that the function takes after the operands."""
        return tuple(str(one.name) for one in self.function.params if str(one.ty) == "int64")

    @property
    def workspace(self) -> Buffer | None:
        """Memory that the function takes after the result; its content is lost between calls."""
        return None

    @property
    def facts(self) -> CompilerFacts | None:
        """The facts that the compiler of a GPU kernel reported; None for a CPU."""
        return None


def model_kernel(name: str, schedule: Schedule, threads: int, span: RangedCalls | None = None) -> ModelKernel:
    """Return a schedule's program as a kernel of a model.

    Parameters
    ----------
    span : RangedCalls, optional
        The range of the extent that the kernel takes at run time.

    Raises
    ------
    SpaceError, BuildError
        See `codegen.cpu.lower.lower`.
    """
    if span is not None and span.axis == "i" and not schedule.workload.is_kernel:
        program = ranged_program(schedule, span.axis, span.least, threads=threads, prefix=name, piece=_MOST_NEST_ROWS)
    else:
        program = write_program(schedule, threads, prefix=name, extents=OneByOne(span.axis) if span else FIXED)
    packers = {
        tensor: _make_packer(text, program.packing_llvm, program.packed_sizes[tensor], name)
        for tensor, text in program.packing.items()
    }
    return ModelKernel(name, kernel_function(program.main, program.llvm, name, schedule.key), packers)


def kernel_function(text: str, llvm: str, name: str, kind: str) -> TvmObject:
    """Return a program as a function that TVM's passes leave unchanged; `kind` is stored as its attribute."""
    return mark_kernel(parse_program(text, llvm), name, kind)


def mark_kernel(function: TvmObject, name: str, kind: str) -> TvmObject:
    """Return a function under a name that TVM's passes leave unchanged; `kind` is stored as its attribute."""
    return function.with_attrs({"global_symbol": name, KERNEL: kind, "op_pattern": OPAQUE})


def _make_packer(text: str, llvm: str, num_elements: int, kernel: str) -> Packer:
    """Return a packing function of a kernel's operand, named after its content."""
    anonymous_text = f"{text}{llvm}".replace(kernel, "")  # functions that it calls are named after the kernel
    name = f"anatune_pack_{hashlib.sha256(anonymous_text.encode()).hexdigest()[:16]}"
    return Packer(name, text, llvm, num_elements)


def attention_kernel(name: str, kernel: AttentionKernel, lanes: int, threads: int) -> ModelKernel:
    """Return an attention as a kernel of a model; `lanes` is the number of float32 elements in a vector.

    Raises
    ------
    SpaceError, BuildError
        See `model_kernel`.
    """
    from anatune.network.kernels.attention import attention_program

    return _make_unpacked_kernel(name, "attention", attention_program(kernel, name, lanes, threads))


def _make_unpacked_kernel(name: str, kind: str, program: tuple[str, str]) -> ModelKernel:
    """Return the kernel of a program, TVMScript and LLVM IR, that packs no operand."""
    return ModelKernel(name, kernel_function(*program, name, kind), {})


def list_unplanned(graph: Graph) -> dict[Node, tuple[str, _KernelAndWriter]]:
    """Return name, and kernel with writer, of each node whose operator is in `_OPERATORS`; equal nodes share them."""
    kernels_by_group: dict[str, dict[Hashable, tuple[str, _KernelAndWriter]]] = {}
    kernels = {}
    different = {_concat(node)[0] for node in graph.nodes() if node.op == CONCAT}
    counts = Counter(len(kernel.lengths) for kernel in different)
    for node in graph.nodes():
        if node.op not in _OPERATORS or not _OPERATORS[node.op].takes(node) or 0 in tensor_type(node).shape:
            continue
        operator = _OPERATORS[node.op]
        if operator.is_fixed and _has_varying_size(node):
            raise WorkloadError(
                f"{node.op.removeprefix('anatune.')} of {name_of(node.type)}: its sizes vary, but its kernels are for "
                "fixed sizes; compile the model for fixed sizes (example inputs)"
            )
        group = kernels_by_group.setdefault("rows" if operator.word == "rows" else "others", {})
        kernel, program = operator.kernel_of(node)
        if node.op == CONCAT and counts[len(node.arguments)] >= _FEWEST_SHARED and not _has_varying_size(node):
            rows, *widths = (Size.symbol(name, size) for name, size in sizes_of_concatenation(node).items())
            kernel = replace(kernel, outer=rows, lengths=tuple(widths))
        name = f"anatune_{operator.word}_{len(group)}_{kernel.kind}"
        kernels[node] = group.setdefault(kernel, (name, (kernel, program)))
    return kernels


def sizes_of_concatenation(node: Node) -> dict[str, int]:
    """Return the sizes that the kernel of many concatenations takes, by the names of its symbols.

    Concatenations whose sizes vary have kernels of their own, which take the model's symbols.
    """
    if node.op != CONCAT or _has_varying_size(node):
        return {}
    widths = {f"concat_width{number}": tensor_type(part).shape[1] for number, part in enumerate(node.arguments)}
    return {"concat_rows": tensor_type(node).shape[0], **widths}


def write_unplanned(graph: Graph, hardware: CpuSpec, threads: int) -> dict[Node, ModelKernel]:
    """Write the kernels of `list_unplanned`."""
    written: dict[str, ModelKernel] = {}
    kernels = {}
    for node, (name, (kernel, program)) in list_unplanned(graph).items():
        if name not in written:
            written[name] = _make_unpacked_kernel(name, kernel.kind, program(kernel, name, threads, hardware))
        kernels[node] = written[name]
    return kernels


def _write_with_lanes(program: Callable[..., tuple[str, str]]) -> _KernelWriter:
    """Return a writer for a program that needs only the number of elements in a vector."""
    return lambda kernel, name, threads, hardware: program(kernel, name, threads=threads, lanes=hardware.fp32_lanes)


def _row_kernel(node: Node) -> _KernelAndWriter:
    from anatune.network.kernels.rows import RowKernel, row_program

    rows, length = tensor_type(node).shape
    attrs, program = node.attributes, _write_with_lanes(row_program)
    if node.op == SOFTMAX:
        mask_rows = tensor_type(node.arguments[1]).shape[0] if len(node.arguments) > 1 else 0
        kernel = RowKernel("softmax", rows, length, attrs["scale"], mask_rows, attrs["zero_rows"], block=attrs["block"])
        return kernel, program
    assert node.op == LAYER_NORM
    operands, dtype = len(node.arguments) - 1, tensor_type(node).dtype
    return RowKernel("layer_norm", rows, length, epsilon=attrs["epsilon"], operands=operands, dtype=dtype), program


def _window(node: Node) -> _KernelAndWriter:
    from anatune.network.kernels.window_kernel import WindowKernel
    from anatune.network.kernels.windows import window_program

    def program(kernel: WindowKernel, name: str, threads: int, hardware: CpuSpec) -> tuple[str, str]:
        return window_program(
            kernel,
            name,
            threads,
            lanes=hardware.fp32_lanes,
            registers=hardware.compute.num_vector_registers,
            caches=(hardware.l1.size_bytes, hardware.l2.size_bytes),
            rounds=hardware.dot_instruction("vdpbf16ps") is not None,
        )

    batch, blocks, *sizes, channels = tensor_type(node.arguments[0]).shape
    dtypes = tuple(tensor_type(value).dtype for value in (*node.arguments, node))
    kernel = WindowKernel(
        batch=batch, blocks=blocks, channels=channels, sizes=(sizes[0], sizes[1]), dtypes=dtypes, **node.attributes
    )
    return kernel, program


def _recurrent(node: Node) -> _KernelAndWriter:
    from anatune.network.kernels.recurrent import RecurrentKernel, recurrent_program

    steps, batch, _ = tensor_type(node.arguments[0]).shape
    attrs = {**node.attributes, "functions": tuple(name.removeprefix("nn.") for name in node.attributes["functions"])}
    return RecurrentKernel(steps=steps, batch=batch, hidden=tensor_type(node).shape[2], **attrs), recurrent_program


def _permute(node: Node) -> _KernelAndWriter:
    from anatune.network.kernels.moves import PermuteKernel, permute_program

    shape, axes = tensor_type(node.arguments[0]).shape, tuple(node.attributes["axes"])
    return PermuteKernel(shape, axes, tensor_type(node).dtype), _write_with_lanes(permute_program)


def _concat(node: Node) -> _KernelAndWriter:
    from anatune.network.kernels.moves import ConcatKernel, concat_program

    (outer, _), dtype = tensor_type(node)
    widths = tuple(tensor_type(part).shape[1] for part in node.arguments)
    return ConcatKernel(outer, widths, dtype), _write_with_lanes(concat_program)


def _divisor(node: Node) -> _KernelAndWriter:
    from anatune.codegen.cpu.divisors import DivisorKernel, divisor_program

    return DivisorKernel(*tensor_type(node), node.attributes["operator"]), divisor_program


def _put(node: Node) -> _KernelAndWriter:
    from anatune.network.kernels.puts import PutKernel, put_program

    (shape, dtype), places = tensor_type(node), node.arguments[2]
    first = places.value if isinstance(places, Scalar) and isinstance(places.value, int) else -1
    kernel = PutKernel(shape, tensor_type(node.arguments[1]).shape, node.attributes["axis"], dtype, first)
    return kernel, _write_with_lanes(put_program)


def _scatter(node: Node) -> _KernelAndWriter:
    from anatune.network.kernels.places import ScatterKernel, scatter_program

    data, index, updates = map(tensor_type, node.arguments)
    attrs = node.attributes
    kernel = ScatterKernel(
        data.shape, updates.shape, data.dtype, index.shape, index.dtype, attrs["axis"] % len(data.shape),
        attrs["reduction"],
    )  # fmt: skip
    return kernel, scatter_program


def _top(node: Node) -> _KernelAndWriter:
    from anatune.network.kernels.places import TopKernel, top_program

    (shape, dtype), attrs = tensor_type(node.arguments[0]), node.attributes
    return TopKernel(shape, dtype, attrs["axis"] % len(shape), attrs["k"], attrs["largest"]), top_program


def _has_varying_size(node: Node) -> bool:
    """Return whether a size of an operand or of the result is known only at run time."""
    return is_run_time(
        (tensor_type(node).shape, *(tensor_type(value).shape for value in iterate_values(node.arguments)))
    )


def _is_float(node: Node) -> bool:
    return tensor_type(node).dtype in ("float32", *HALVES)


def _has_top(node: Node) -> bool:
    shape, dtype = tensor_type(node.arguments[0])
    return dtype not in FOREIGN and not is_run_time(shape)


class _Operator(NamedTuple):
    """An operator: the word in its functions' names, a function from a node to its kernel, and a test of nodes.

    If it `is_fixed`, nodes with sizes that vary are refused, because nothing else computes them.
    """

    word: str
    kernel_of: Callable[[Node], _KernelAndWriter]
    takes: Callable[[Node], bool] = _is_float
    is_fixed: bool = False


_OPERATORS: dict[str, _Operator] = {
    **dict.fromkeys((SOFTMAX, LAYER_NORM), _Operator("rows", _row_kernel)),
    PUT: _Operator("moves", _put, lambda _: True),
    CONCAT: _Operator("moves", _concat),
    DIVISOR: _Operator("checks", _divisor, lambda _: True),
    "permute_dims": _Operator("moves", _permute),
    RECURRENCE: _Operator("recurrent", _recurrent, is_fixed=True),
    SCATTER: _Operator("places", _scatter, lambda _: True, is_fixed=True),
    "topk": _Operator("places", _top, _has_top),
    WINDOW: _Operator("windows", _window),
}
"""Operators with CPU kernels that are not planned. Their writers are imported on use."""
