"""Sub-graphs of PyTorch's compiler with operators that cannot be imported: the blocks between them are compiled.

PyTorch's own partitioner makes blocks as large as they can be; one with a convolution or a matrix product becomes a
model of anatune's, everything else stays as it was.
"""

from __future__ import annotations

import timeit
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from anatune.compiling.compiled import CompiledModel
from anatune.errors import AnatuneError, WorkloadError
from anatune.graph.torch.reading import refused_nodes
from anatune.untyped import TorchObject

__all__ = ["Divided", "divided", "number_places", "unsupported", "varying_sizes", "with_constants", "with_numbers"]

_PRODUCTS = ("addmm", "baddbmm", "bmm", "conv", "linear", "matmul", "mm")
"""What names of PyTorch's core operators begin with that anatune has kernels for."""

_REPEATS = 3
"""Runs of which the fastest counts."""
Call = Callable[..., TorchObject]


class Divided(NamedTuple):
    """A sub-graph of which blocks are compiled.

    Attributes
    ----------
    run : callable
        Takes the program's inputs and returns its outputs, a tuple.
    models : tuple of CompiledModel
    failed : tuple of str
        Why other blocks are not, once each.
    left_share : float
        Of the time of a run, that is not theirs: the least of a few.
    """

    run: Call
    models: tuple[CompiledModel, ...]
    failed: tuple[str, ...]
    left_share: float


def unsupported(program: TorchObject) -> Counter[str]:
    """Return the operators of an exported program that cannot be imported, and how often it has them."""
    return Counter(map(_name, refused_nodes(program)))


def divided(program: TorchObject, inputs: Sequence[TorchObject], compile_block: Call, fewest: int) -> Divided:
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
    graph_module, refused = program.graph_module, frozenset(refused_nodes(program))
    weights = _weights(program)
    blocks = _blocks(graph_module, refused, fewest)
    if not blocks:
        raise WorkloadError(
            f"around {_counted(Counter(map(_name, refused)))} it has no block with a product worth compiling"
        )
    partitioner = import_module("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner(graph_module, None)
    fused = partitioner.fuse_partitions(blocks, prefix="block_")
    seen = _arguments_of_blocks(torch, fused, [*weights.values(), *inputs])
    names = {node.name: node for node in fused.graph.nodes}
    compiled: dict[str, CompiledModel] = {}
    failed, own_s = [], 0.0
    for target, given in seen.items():
        (call,) = (node for node in names.values() if node.op == "call_module" and node.target == target)
        known_places = {place: weights[node.name] for place, node in enumerate(call.args) if node.name in weights}
        block = with_constants(torch, fused.get_submodule(target), known_places)
        changing = [argument for place, argument in enumerate(given) if place not in known_places]
        try:
            model = compile_block(block, tuple(changing))
        except AnatuneError as error:
            failed.append(str(error))
            continue
        compiled[target] = model
        own_s += _least(model, changing)
        fused.add_submodule(target, _caller(torch, model, frozenset(known_places)))
    if not compiled:
        raise WorkloadError(failed[0] if failed else "it has no block that reads its inputs")
    own = {node for node in names.values() if node.op == "call_module" and node.target in compiled}
    # blocks have their own
    held = [tensor if set(names[name].users) - own else None for name, tensor in weights.items()]

    def run(*given: TorchObject) -> TorchObject:
        return fused(*held, *given)

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        share = max(0.0, 1 - own_s / _least(run, inputs))
    return Divided(run, tuple(compiled.values()), tuple(dict.fromkeys(failed)), share)


def _least(call: Call, given: Sequence[TorchObject]) -> float:
    """Return the least time of a few calls."""
    return min(timeit.repeat(lambda: call(*given), number=1, repeat=_REPEATS))


class Varying(NamedTuple):
    """The sizes of a sub-graph's arguments that vary.

    Attributes
    ----------
    axes : tuple of tuple of int
        Of each tensor among the arguments that are not known, in order.
    sizes : dict of int to (int, int)
        Place of an argument that is a size -> which of these tensors has it, along which axis.
    """

    axes: tuple[tuple[int, ...], ...]
    sizes: dict[int, tuple[int, int]]


def varying_sizes(torch: TorchObject, module: TorchObject, known: Container[int]) -> Varying:
    """Return which sizes of a sub-graph's arguments vary; `known`: places of those that are constants.

    Raises
    ------
    WorkloadError
        A size is none of a tensor's.
    """
    given = [node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder"]
    tensors = [one for place, one in enumerate(given) if place not in known and isinstance(one, torch.Tensor)]
    places: dict[str, tuple[int, int]] = {}
    for number, tensor in enumerate(tensors):
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt):
                places.setdefault(str(size), (number, axis))
    sizes = {place: one for place, one in enumerate(given) if isinstance(one, torch.SymInt)}
    for one in sizes.values():
        if str(one) not in places:
            raise WorkloadError(f"it takes a number that varies ({one}), expected sizes of tensors; try dynamic=False")
    axes = (tuple(axis for axis, size in enumerate(one.shape) if isinstance(size, torch.SymInt)) for one in tensors)
    return Varying(tuple(axes), {place: places[str(one)] for place, one in sizes.items()})


def number_places(module: TorchObject) -> frozenset[int]:
    """Return the places of a sub-graph's arguments that are tensors of one element and only read as numbers.

    Those are a module's numbers (``eps``) under ``dynamic=True``.
    """
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset(
        place for place, node in enumerate(nodes) if node.users and all(user.target == "item" for user in node.users)
    )


def with_numbers(torch: TorchObject, module: TorchObject, numbers: Mapping[int, float]) -> TorchObject:
    """Return a sub-graph in which arguments at some places (`number_places`), are numbers wherever they are read."""
    known = {node: place for place, node in enumerate(node for node in module.graph.nodes if node.op == "placeholder")}
    graph = torch.fx.Graph()
    made: dict[TorchObject, TorchObject] = {}
    for node in module.graph.nodes:
        place = known.get(node.args[0], -1) if node.target == "item" else -1
        made[node] = numbers[place] if place in numbers else graph.node_copy(node, made.__getitem__)
    return torch.fx.GraphModule(module, graph) if numbers else module


def with_constants(
    torch: TorchObject,
    module: TorchObject,
    constants: Mapping[int, TorchObject],
    sizes: Mapping[int, tuple[int, int]] | None = None,
) -> TorchObject:
    """Return a module whose arguments at some places are constants, buffers of it, or sizes; it takes the others."""
    known = sizes or {}

    class SubGraph(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A sub-graph with its weights."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            for place, tensor in constants.items():
                self.register_buffer(f"weight{place}", tensor.detach())

        def forward(self, *inputs: TorchObject) -> TorchObject:
            given, places = iter(inputs), range(len(inputs) + len(constants) + len(known))

            def argument(place: int) -> TorchObject:
                if place in known:
                    number, axis = known[place]
                    return inputs[number].shape[axis]
                return getattr(self, f"weight{place}") if place in constants else next(given)

            return self.inner(*map(argument, places))

    return SubGraph().eval()


def _blocks(graph_module: TorchObject, refused: frozenset[TorchObject], fewest: int) -> list[TorchObject]:
    """Return the partitions that are worth compiling."""
    support = import_module("torch.fx.passes.operator_support")

    class Importable(support.OperatorSupportBase):  # type: ignore[misc,name-defined]
        """What can be read."""

        def is_node_supported(self, _modules: TorchObject, node: TorchObject) -> bool:
            """Whether a node can be in a block."""
            return node.op == "call_function" and node not in refused

    partitioner = import_module("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner(
        graph_module, Importable(), allows_single_node_partition=True
    )
    worthwhile = []
    for partition in partitioner.propose_partitions():
        names = [_name(node) for node in partition.nodes]
        if len(names) >= fewest and any(name.startswith(_PRODUCTS) for name in names):
            worthwhile.append(partition)
    return worthwhile


def _arguments_of_blocks(
    torch: TorchObject, fused: TorchObject, arguments: Sequence[TorchObject]
) -> dict[str, tuple[TorchObject, ...]]:
    """Return what each block is called with when the module runs, by its name in order."""
    seen: dict[str, tuple[TorchObject, ...]] = {}

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc,name-defined]
        """Keeps what blocks are called with."""

        def call_module(self, target: str, args: TorchObject, kwargs: TorchObject) -> TorchObject:
            """Call a block."""
            if target.startswith("block_"):
                seen[target] = tuple(args)
            return super().call_module(target, args, kwargs)

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        Recorder(fused).run(*arguments)
    return seen


def _caller(torch: TorchObject, model: CompiledModel, known: frozenset[int]) -> TorchObject:
    """Return a module that calls a compiled block, which has some of the arguments as constants."""

    class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A compiled block."""

        def forward(self, *arguments: TorchObject) -> TorchObject:
            return model(*(argument for place, argument in enumerate(arguments) if place not in known))

    return Block()


def _weights(program: TorchObject) -> dict[str, TorchObject]:
    """Return the tensors of a program that are no inputs, by the names of their placeholders, in order."""
    kinds = import_module("torch.export.graph_signature").InputKind
    weights = {}
    for input_spec in program.graph_signature.input_specs:
        if input_spec.kind != kinds.USER_INPUT:
            known = program.constants if input_spec.target in program.constants else program.state_dict
            weights[input_spec.arg.name] = known[input_spec.target]
    return weights


def _name(node: TorchObject) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _counted(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in names.items())
