"""Sub-graphs of PyTorch's compiler with operators that cannot be imported: the blocks between them are compiled.

PyTorch's own partitioner makes blocks as large as they can be; one with a convolution or a matrix product becomes a
model of anatune's, everything else stays as it was.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from anatune.errors import AnatuneError, WorkloadError
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.graph.torch.reading import refused_nodes
from anatune.untyped import ExportedProgram, TorchArgument, TorchTensor, fx, nn

__all__ = [
    "Divided",
    "check_effects",
    "divided",
    "number_places",
    "unsupported",
    "varying_sizes",
    "with_constants",
    "with_numbers",
]

_PRODUCTS = ("addmm", "baddbmm", "bmm", "conv", "linear", "matmul", "mm")
"""What names of PyTorch's core operators begin with that anatune has kernels for."""

_CONSTANT = "weight"
"""What the name of a constant of `with_constants` begins with; its place follows."""
Call = Callable[..., object]
_Compile = Callable[..., CompiledModel]


class Divided(NamedTuple):
    """A sub-graph of which blocks are compiled.

    Attributes
    ----------
    run : callable
        Takes the constants by their places (`with_constants`) and the inputs, and returns the outputs, a tuple.
    models : tuple of CompiledModel
    failed : tuple of str
        Why other blocks are not, once each.
    pieces : tuple of torch.Tensor
        Outputs of the first run, in which blocks were compiled.
    left_share : float
        Of the time of that run, that is not theirs.
    """

    run: Call
    models: tuple[CompiledModel, ...]
    failed: tuple[str, ...]
    pieces: tuple[TorchTensor, ...]
    left_share: float


def unsupported(program: ExportedProgram) -> Counter[str]:
    """Return the operators of an exported program that cannot be imported, and how often it has them."""
    return Counter(map(_name, refused_nodes(program)))


def check_effects(torch: ModuleType, program: ExportedProgram) -> None:
    """Raise WorkloadError where PyTorch would remove an operator that does more than return values.

    That is an operator of somebody's, or one that draws random numbers, whose result nothing reads.
    """
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            read = set()
            for node in reversed(module.graph.nodes):
                if node.op == "output" or node in read:
                    read.update(node.all_input_nodes)
                elif _has_effects(torch, node):
                    raise WorkloadError(f"nothing reads what {_name(node)} returns, and it may do more than that")


def _has_effects(torch: ModuleType, node: fx.Node) -> bool:
    """Whether an operator may do more than return values: it draws random numbers, or it is none of PyTorch's."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or getattr(node.target, "namespace", "aten") not in (
        "aten", "prims",
    )  # fmt: skip


def divided(program: ExportedProgram, inputs: Sequence[TorchTensor], compile_block: _Compile, fewest: int) -> Divided:
    """Run a program, and compile its blocks without unsupported operators as it comes to them.

    Each operator runs once: it may have effects, and random numbers go on from one call to the next.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Decomposed, of a module of `with_constants`.
    inputs : sequence of torch.Tensor
    compile_block : callable
        Takes a module and its inputs and returns a `CompiledModel`; `AnatuneError`: the block stays as it is.
    fewest : int
        Operators that a block has at least.

    Raises
    ------
    WorkloadError
        No block can be compiled; the message says why. Nothing was run.
    """
    torch = import_module("torch")
    graph_module = program.graph_module
    checks = (node for node in graph_module.graph.nodes if _name(node) == "with_effects")  # no tensor comes of them
    refused = frozenset(refused_nodes(program)).union(checks)
    weights = _weights(program)
    blocks = _blocks(graph_module, refused, fewest)
    if not blocks:
        raise WorkloadError(
            f"around {_counted(Counter(map(_name, refused)))} it has no block with a product worth compiling"
        )
    partitioner = import_module("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner(graph_module, None)
    in_order = [node.name for node in graph_module.graph.nodes if _has_effects(torch, node)]
    fused = partitioner.fuse_partitions(blocks, prefix="block_")
    if in_order != [node.name for node in fused.graph.nodes if _has_effects(torch, node)]:
        raise WorkloadError(f"blocks would change the order of {', '.join(in_order)}, which may have effects")
    # tensors that stay, and places of those of `with_constants`, which are given in each call
    held = [tensor if (place := _place(target)) is None else place for target, tensor in weights.values()]
    first = _FirstRun(torch, fused, compile_block, {name: tensor for name, (_, tensor) in weights.items()})
    tokens = len(program.graph_signature.output_specs) - len(program.graph_signature.user_outputs)  # they come first
    pieces = first.run([tensor for _, tensor in weights.values()], inputs)[tokens:]

    def run(known: Mapping[int, TorchTensor], given: Sequence[TorchArgument]) -> object:
        every = [*(known[weight] if isinstance(weight, int) else weight for weight in held), *given]
        return _separate(fused(*every)[tokens:], every)

    return Divided(run, tuple(first.models), tuple(dict.fromkeys(first.failed)), pieces, first.left_share)


class _FirstRun:
    """The first run of a program, which compiles the blocks that it comes to.

    Attributes
    ----------
    models : list of CompiledModel
    failed : list of str
        Why other blocks are not compiled.
    left_share : float
        Of the time of the run, that is not theirs.
    """

    def __init__(
        self, torch: ModuleType, fused: fx.GraphModule, compile_block: _Compile, weights: Mapping[str, TorchTensor]
    ) -> None:
        self._torch, self._fused, self._compile, self._weights = torch, fused, compile_block, weights
        self.models: list[CompiledModel] = []
        self.failed: list[str] = []
        self._block_s = self._left_s = 0.0

    @property
    def left_share(self) -> float:
        """As the class says."""
        return self._left_s / max(self._left_s + self._block_s, 1e-9)

    def run(self, weights: Sequence[TorchTensor], inputs: Sequence[TorchTensor]) -> tuple[TorchTensor, ...]:
        """Return the outputs."""
        first = self

        class Runner(self._torch.fx.Interpreter):  # type: ignore[misc,name-defined]
            """Compiles blocks before it runs them."""

            def run_node(self, node: fx.Node) -> object:
                """Run a node."""
                is_block = node.op == "call_module" and first.replace(node, self.fetch_args_kwargs_from_env(node)[0])
                began = time.perf_counter()
                result = super().run_node(node)
                first.add_time(time.perf_counter() - began, is_block=is_block)
                return result

        with self._torch.no_grad():
            outputs = Runner(self._fused).run(*weights, *inputs)
        return _separate(outputs, [*weights, *inputs])

    def replace(self, node: fx.Node, given: Sequence[object]) -> bool:
        """Replace a block by a compiled one; whether that can be done."""
        places = {place: self._weights[one.name] for place, one in enumerate(node.args) if one.name in self._weights}
        inner = self._fused.get_submodule(node.target)
        block = with_constants(self._torch, inner, places)
        try:
            model = self._compile(block, tuple(one for place, one in enumerate(given) if place not in places))
        except AnatuneError as error:
            self.failed.append(str(error))
            return False
        self.models.append(model)
        (returned,) = (one.args[0] for one in inner.graph.nodes if one.op == "output")
        strides = [one.meta["val"].stride() for one in (returned if isinstance(returned, tuple | list) else [returned])]
        self._fused.add_submodule(node.target, _caller(self._torch, model, frozenset(places), strides))
        return True

    def add_time(self, time_s: float, *, is_block: bool) -> None:
        """Count the time of a node."""
        self._block_s += time_s if is_block else 0.0
        self._left_s += 0.0 if is_block else time_s


def _separate(outputs: Sequence[TorchTensor], given: Sequence[TorchTensor]) -> tuple[TorchTensor, ...]:
    """Return outputs, each contiguous in memory of its own: a program returns views where values are equal."""
    taken = {one.untyped_storage().data_ptr() for one in given if hasattr(one, "untyped_storage")}
    separate = []
    for output in outputs:
        address = output.untyped_storage().data_ptr()
        is_own = output.is_contiguous() and address not in taken and not output.storage_offset()
        separate.append(output if is_own else output.clone(memory_format=import_module("torch").contiguous_format))
        taken.add(address)
    return tuple(separate)


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


def varying_sizes(torch: ModuleType, module: fx.GraphModule, known: Container[int]) -> Varying:
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


def number_places(module: fx.GraphModule) -> frozenset[int]:
    """Return the places of a sub-graph's arguments that are tensors of one element and only read as numbers.

    Those are a module's numbers (``eps``) under ``dynamic=True``.
    """
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset(
        place for place, node in enumerate(nodes) if node.users and all(user.target == "item" for user in node.users)
    )


def with_numbers(torch: ModuleType, module: fx.GraphModule, numbers: Mapping[int, float]) -> fx.GraphModule:
    """Return a sub-graph in which arguments at some places (`number_places`), are numbers wherever they are read."""
    known = {node: place for place, node in enumerate(node for node in module.graph.nodes if node.op == "placeholder")}
    graph = torch.fx.Graph()
    made: dict[fx.Node, object] = {}
    for node in module.graph.nodes:
        place = known.get(node.args[0], -1) if node.target == "item" else -1
        made[node] = numbers[place] if place in numbers else graph.node_copy(node, made.__getitem__)
    return torch.fx.GraphModule(module, graph) if numbers else module


def with_constants(
    torch: ModuleType, module: fx.GraphModule, constants: Mapping[int, TorchTensor],
    sizes: Mapping[int, tuple[int, int]] | None = None,
) -> nn.Module:  # fmt: skip
    """Return a module whose arguments at some places are constants, buffers of it, or sizes; it takes the others."""
    known = sizes or {}

    class SubGraph(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A sub-graph with its weights."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            for place, tensor in constants.items():
                self.register_buffer(f"{_CONSTANT}{place}", tensor.detach())

        def forward(self, *inputs: TorchArgument) -> object:
            given, places = iter(inputs), range(len(inputs) + len(constants) + len(known))

            def argument(place: int) -> object:
                if place in known:
                    number, axis = known[place]
                    return inputs[number].shape[axis]
                return getattr(self, f"{_CONSTANT}{place}") if place in constants else next(given)

            return self.inner(*map(argument, places))

    return SubGraph().eval()


def _blocks(graph_module: fx.GraphModule, refused: frozenset[fx.Node], fewest: int) -> list[object]:
    """Return the partitions that are worth compiling."""
    support = import_module("torch.fx.passes.operator_support")

    class Importable(support.OperatorSupportBase):  # type: ignore[misc,name-defined]
        """What can be read."""

        def is_node_supported(self, _modules: Mapping[str, nn.Module], node: fx.Node) -> bool:
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


def _caller(
    torch: ModuleType, model: CompiledModel, known: frozenset[int], strides: Sequence[tuple[int, ...]]
) -> nn.Module:
    """Return a module that calls a compiled block, which has some of the arguments as constants.

    What it returns has the strides that PyTorch was told: some operators read them, and random numbers follow them.
    """

    def laid(tensor: TorchTensor, stride: tuple[int, ...]) -> TorchTensor:
        if tensor.stride() == stride:
            return tensor
        return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)

    class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A compiled block."""

        def forward(self, *arguments: TorchTensor) -> object:
            outputs = model(*(argument for place, argument in enumerate(arguments) if place not in known))
            if isinstance(outputs, tuple):
                return tuple(map(laid, outputs, strides))
            return laid(outputs, strides[0])

    return Block()


def _weights(program: ExportedProgram) -> dict[str, tuple[str, TorchTensor]]:
    """Return the tensors of a program that are no inputs: name of a placeholder -> its target and it, in order.

    A token is empty: PyTorch hands it from one check of linear algebra to the next.
    """
    kinds = import_module("torch.export.graph_signature").InputKind
    weights = {}
    for input_spec in program.graph_signature.input_specs:
        if input_spec.kind == kinds.TOKEN:
            weights[input_spec.arg.name] = ("", import_module("torch").empty(0))
        elif input_spec.kind != kinds.USER_INPUT:
            known = program.constants if input_spec.target in program.constants else program.state_dict
            weights[input_spec.arg.name] = (input_spec.target, known[input_spec.target])
    return weights


def _place(target: str) -> int | None:
    """Return the place of a constant of `with_constants`, by its name; None: it is another tensor."""
    number = target.removeprefix(_CONSTANT)
    return int(number) if number != target and number.isdigit() else None


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _counted(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in names.items())
