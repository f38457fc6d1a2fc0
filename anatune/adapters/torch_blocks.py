"""Sub-graphs of PyTorch's compiler with operators that cannot be imported: the blocks between them are compiled.

PyTorch's own partitioner makes blocks as large as they can be; one with a convolution or a matrix product becomes a
model of anatune's, everything else stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from anatune.codegen.relax.importers import torch_operators
from anatune.compiling.compiled import CompiledModel
from anatune.errors import AnatuneError, WorkloadError

__all__ = ["Divided", "divided", "unsupported"]

_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
"""Of tensors that can be imported."""
_PRODUCTS = ("addmm", "baddbmm", "bmm", "conv", "linear", "matmul", "mm")
"""What names of PyTorch's core operators begin with that anatune has kernels for."""

Call = Callable[..., Any]


class Divided(NamedTuple):
    """A sub-graph of which blocks are compiled.

    Attributes
    ----------
    run : callable
        Takes the program's inputs and returns its outputs, a tuple.
    models : tuple of CompiledModel
    failed : tuple of str
        Why other blocks are not, once each.
    """

    run: Call
    models: tuple[CompiledModel, ...]
    failed: tuple[str, ...]


def unsupported(program: Any) -> Counter[str]:
    """Return the operators of an exported program that cannot be imported, and how often it has them."""
    known = torch_operators()
    called = (node for node in program.graph.nodes if node.op == "call_function")
    return Counter(_name(node) for node in called if not _is_known(node, known))


def divided(program: Any, inputs: Sequence[Any], compile_block: Call, fewest: int) -> Divided:
    """Return a program whose blocks without unsupported operators are compiled.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Decomposed.
    inputs : sequence of torch.Tensor
    compile_block : callable
        Takes a module and its inputs and returns a `CompiledModel`; `AnatuneError`: the block stays as it is.
    fewest : int
        Operators that a block has at least.

    Raises
    ------
    WorkloadError
        No block can be compiled; the message says why.
    """
    torch = import_module("torch")
    graph_module, known = program.graph_module, torch_operators()
    weights = _weights(program)
    blocks = _blocks(graph_module, known, fewest)
    if not blocks:
        raise WorkloadError(f"around {_counted(unsupported(program))} it has no block with a product worth compiling")
    partitioner = import_module("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner(graph_module, None)
    fused = partitioner.fuse_partitions(blocks, prefix="block_")
    seen = _arguments_of_blocks(torch, fused, [*weights.values(), *inputs])
    names = {node.name: node for node in fused.graph.nodes}
    compiled: dict[str, CompiledModel] = {}
    failed = []
    for target, given in seen.items():
        (call,) = (node for node in names.values() if node.op == "call_module" and node.target == target)
        known_places = {place: weights[one.name] for place, one in enumerate(call.args) if one.name in weights}
        block = with_constants(torch, fused.get_submodule(target), known_places)
        changing = [one for place, one in enumerate(given) if place not in known_places]
        try:
            model = compile_block(block, tuple(changing))
        except AnatuneError as error:
            failed.append(str(error))
            continue
        compiled[target] = model
        fused.add_submodule(target, _caller(torch, model, frozenset(known_places)))
    if not compiled:
        raise WorkloadError(failed[0] if failed else "it has no block that reads its inputs")
    own = {node for node in names.values() if node.op == "call_module" and node.target in compiled}
    held = [one if set(names[name].users) - own else None for name, one in weights.items()]  # blocks have their own
    return Divided(lambda *given: fused(*held, *given), tuple(compiled.values()), tuple(dict.fromkeys(failed)))


def with_constants(torch: Any, module: Any, constants: Mapping[int, Any]) -> Any:
    """Return a module whose arguments at some places are constants, buffers of it; it takes the others in order."""

    class SubGraph(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A sub-graph with its weights."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            for place, one in constants.items():
                self.register_buffer(f"weight{place}", one.detach())

        def forward(self, *inputs: Any) -> Any:
            given, places = iter(inputs), range(len(inputs) + len(constants))
            return self.inner(*(getattr(self, f"weight{at}") if at in constants else next(given) for at in places))

    return SubGraph().eval()


def _blocks(graph_module: Any, known: frozenset[str], fewest: int) -> list[Any]:
    """Return the partitions that are worth compiling."""
    support = import_module("torch.fx.passes.operator_support")

    class Importable(support.OperatorSupportBase):  # type: ignore[misc,name-defined]
        """What TVM imports."""

        def is_node_supported(self, _modules: Any, node: Any) -> bool:
            """Whether a node can be in a block."""
            return node.op == "call_function" and _is_known(node, known)

    partitioner = import_module("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner(
        graph_module, Importable(), allows_single_node_partition=True
    )
    found = []
    for partition in partitioner.propose_partitions():
        names = [_name(node) for node in partition.nodes]
        if len(names) >= fewest and any(name.startswith(_PRODUCTS) for name in names):
            found.append(partition)
    return found


def _arguments_of_blocks(torch: Any, fused: Any, arguments: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Return what each block is called with when the module runs, by its name in order."""
    seen: dict[str, tuple[Any, ...]] = {}

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc,name-defined]
        """Keeps what blocks are called with."""

        def call_module(self, target: str, args: Any, kwargs: Any) -> Any:
            """Call a block."""
            if target.startswith("block_"):
                seen[target] = tuple(args)
            return super().call_module(target, args, kwargs)

    with torch.no_grad():
        Recorder(fused).run(*arguments)
    return seen


def _caller(torch: Any, model: CompiledModel, known: frozenset[int]) -> Any:
    """Return a module that calls a compiled block, which has some of the arguments as constants."""

    class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A compiled block."""

        def forward(self, *arguments: Any) -> Any:
            return model(*(one for place, one in enumerate(arguments) if place not in known))

    return Block()


def _weights(program: Any) -> dict[str, Any]:
    """Return the tensors of a program that are no inputs, by the names of their placeholders, in order."""
    kinds = import_module("torch.export.graph_signature").InputKind
    found = {}
    for input_spec in program.graph_signature.input_specs:
        if input_spec.kind != kinds.USER_INPUT:
            known = program.constants if input_spec.target in program.constants else program.state_dict
            found[input_spec.arg.name] = known[input_spec.target]
    return found


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _is_known(node: Any, known: frozenset[str]) -> bool:
    """Whether an operator, and the dtypes that it reads and returns, can be imported."""
    if _name(node) not in known:
        return False
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    listed = [one for value in values for one in (value if isinstance(value, tuple | list) else (value,))]
    dtypes = [str(one.dtype).removeprefix("torch.") for one in listed if hasattr(one, "dtype")]
    return all(dtype in _DTYPES for dtype in dtypes)


def _counted(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in names.items())
