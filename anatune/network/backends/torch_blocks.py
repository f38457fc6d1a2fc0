"""Compile the blocks of a sub-graph between operators that cannot be imported.

PyTorch's partitioner makes blocks as large as possible. A block with a convolution or a matrix product becomes a
compiled model; PyTorch runs everything else.
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
    "DividedSubGraph",
    "bind_constants",
    "check_effects",
    "compile_blocks",
    "count_refused_operators",
    "find_varying_sizes",
    "number_arguments",
    "replace_numbers",
]

_PRODUCTS = ("addmm", "baddbmm", "bmm", "conv", "linear", "matmul", "mm")
"""Beginnings of the names of PyTorch's core operators that anatune has kernels for."""

_CONSTANT = "weight"
"""Prefix of the names of constants of `bind_constants`; the index of the argument follows."""
Call = Callable[..., object]
_Compile = Callable[..., CompiledModel]


class DividedSubGraph(NamedTuple):
    """A sub-graph with compiled blocks.

    Attributes
    ----------
    run : callable
        Takes the constants by index (`bind_constants`) and the inputs, and returns a tuple of outputs.
    models : tuple of CompiledModel
    failed : tuple of str
        The reasons why other blocks were not compiled, each once.
    pieces : tuple of torch.Tensor
        Outputs of the first run, during which blocks were compiled.
    left_share : float
        Share of the first run's time outside of compiled blocks.
    """

    run: Call
    models: tuple[CompiledModel, ...]
    failed: tuple[str, ...]
    pieces: tuple[TorchTensor, ...]
    left_share: float


def count_refused_operators(program: ExportedProgram) -> Counter[str]:
    """Return the operators of an exported program that cannot be imported, and the count of each."""
    return Counter(map(_name, refused_nodes(program)))


def check_effects(torch: ModuleType, program: ExportedProgram) -> None:
    """Raise WorkloadError if PyTorch would remove an operator that does more than return values.

    Such an operator is custom or draws random numbers, and nothing reads its result.
    """
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            read = set()
            for node in reversed(module.graph.nodes):
                if node.op == "output" or node in read:
                    read.update(node.all_input_nodes)
                elif _has_effects(torch, node):
                    raise WorkloadError(f"nothing reads the result of {_name(node)}, which may have effects")


def _has_effects(torch: ModuleType, node: fx.Node) -> bool:
    """Return whether an operator may have side effects: it draws random numbers, or is not one of PyTorch's."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or getattr(node.target, "namespace", "aten") not in (
        "aten", "prims",
    )  # fmt: skip


def compile_blocks(
    program: ExportedProgram, inputs: Sequence[TorchTensor], compile_block: _Compile, fewest: int
) -> DividedSubGraph:
    """Run a program, and compile its blocks without unsupported operators when the run reaches them.

    Each operator runs exactly once, because it may have side effects and advances the random numbers.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        The decomposed program of a module from `bind_constants`.
    inputs : sequence of torch.Tensor
    compile_block : callable
        Takes a module and its inputs and returns a `CompiledModel`; after an `AnatuneError` PyTorch runs the block.
    fewest : int
        Least number of operators of a block.

    Raises
    ------
    WorkloadError
        No block can be compiled; the message says why. Nothing was run.
    """
    torch = import_module("torch")
    graph_module = program.graph_module
    checks = (node for node in graph_module.graph.nodes if _name(node) == "with_effects")  # no tensor comes of them
    refused = frozenset(refused_nodes(program)).union(checks)
    weights = _collect_weights(program)
    blocks = _propose_blocks(graph_module, refused, fewest)
    if not blocks:
        raise WorkloadError(
            f"it has no block with a product between {_count_text(Counter(map(_name, refused)))} that is worth "
            "compiling"
        )
    partitioner = import_module("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner(graph_module, None)
    effects = [node.name for node in graph_module.graph.nodes if _has_effects(torch, node)]
    fused = partitioner.fuse_partitions(blocks, prefix="block_")
    if effects != [node.name for node in fused.graph.nodes if _has_effects(torch, node)]:
        raise WorkloadError(f"blocks would change the order of {', '.join(effects)}, which may have side effects")
    # tensors that stay, and indices of constants of `bind_constants`, which each call passes
    sources = [tensor if (index := _constant_index(target)) is None else index for target, tensor in weights.values()]
    first = _FirstRun(torch, fused, compile_block, {name: tensor for name, (_, tensor) in weights.items()})
    tokens = len(program.graph_signature.output_specs) - len(program.graph_signature.user_outputs)  # they come first
    pieces = first.run([tensor for _, tensor in weights.values()], inputs)[tokens:]

    def run(constants: Mapping[int, TorchTensor], inputs: Sequence[TorchArgument]) -> object:
        arguments = [*(constants[weight] if isinstance(weight, int) else weight for weight in sources), *inputs]
        return _make_separate(fused(*arguments)[tokens:], arguments)

    return DividedSubGraph(run, tuple(first.models), tuple(dict.fromkeys(first.failed)), pieces, first.left_share)


class _FirstRun:
    """The first run of a program; it compiles the blocks that it reaches.

    Attributes
    ----------
    models : list of CompiledModel
    failed : list of str
        The reasons why other blocks were not compiled.
    left_share : float
        Share of the run's time outside of compiled blocks.
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
        """Share of the run's time outside of compiled blocks."""
        return self._left_s / max(self._left_s + self._block_s, 1e-9)

    def run(self, weights: Sequence[TorchTensor], inputs: Sequence[TorchTensor]) -> tuple[TorchTensor, ...]:
        """Return the outputs."""
        first = self

        class Runner(self._torch.fx.Interpreter):  # type: ignore[misc,name-defined]
            """Compiles each block before running it."""

            def run_node(self, node: fx.Node) -> object:
                """Run a node."""
                is_block = node.op == "call_module" and first.replace(node, self.fetch_args_kwargs_from_env(node)[0])
                began = time.perf_counter()
                result = super().run_node(node)
                first.add_time(time.perf_counter() - began, is_block=is_block)
                return result

        with self._torch.no_grad():
            outputs = Runner(self._fused).run(*weights, *inputs)
        return _make_separate(outputs, [*weights, *inputs])

    def replace(self, node: fx.Node, given: Sequence[object]) -> bool:
        """Replace a block by a compiled one; return whether that was possible."""
        places = {place: self._weights[one.name] for place, one in enumerate(node.args) if one.name in self._weights}
        inner = self._fused.get_submodule(node.target)
        block = bind_constants(self._torch, inner, places)
        try:
            model = self._compile(block, tuple(one for place, one in enumerate(given) if place not in places))
        except AnatuneError as error:
            self.failed.append(str(error))
            return False
        self.models.append(model)
        (returned,) = (one.args[0] for one in inner.graph.nodes if one.op == "output")
        strides = [one.meta["val"].stride() for one in (returned if isinstance(returned, tuple | list) else [returned])]
        self._fused.add_submodule(node.target, _make_block_module(self._torch, model, frozenset(places), strides))
        return True

    def add_time(self, time_s: float, *, is_block: bool) -> None:
        """Add the time of a node."""
        self._block_s += time_s if is_block else 0.0
        self._left_s += 0.0 if is_block else time_s


def _make_separate(outputs: Sequence[TorchTensor], arguments: Sequence[TorchTensor]) -> tuple[TorchTensor, ...]:
    """Return outputs, each contiguous and in its own memory; programs return views where values are equal."""
    addresses = {one.untyped_storage().data_ptr() for one in arguments if hasattr(one, "untyped_storage")}
    separate = []
    for output in outputs:
        address = output.untyped_storage().data_ptr()
        is_own = output.is_contiguous() and address not in addresses and not output.storage_offset()
        separate.append(output if is_own else output.clone(memory_format=import_module("torch").contiguous_format))
        addresses.add(address)
    return tuple(separate)


class VaryingSizes(NamedTuple):
    """The sizes of a sub-graph's arguments that vary.

    Attributes
    ----------
    axes : tuple of tuple of int
        Axes that vary, for each tensor among the arguments that are not constants, in order.
    sizes : dict of int to (int, int)
        Index of an argument that is a size -> index of the tensor that has it, and the axis.
    """

    axes: tuple[tuple[int, ...], ...]
    sizes: dict[int, tuple[int, int]]


def find_varying_sizes(torch: ModuleType, module: fx.GraphModule, constants: Container[int]) -> VaryingSizes:
    """Return the sizes of a sub-graph's arguments that vary; `constants` has the indices of constants.

    Raises
    ------
    WorkloadError
        An argument is a number that is not a tensor's size.
    """
    given = [node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder"]
    tensors = [one for place, one in enumerate(given) if place not in constants and isinstance(one, torch.Tensor)]
    places: dict[str, tuple[int, int]] = {}
    for number, tensor in enumerate(tensors):
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt):
                places.setdefault(str(size), (number, axis))
    sizes = {place: one for place, one in enumerate(given) if isinstance(one, torch.SymInt)}
    for symbol in sizes.values():
        if str(symbol) not in places:
            raise WorkloadError(f"it takes a varying number ({symbol}), expected sizes of tensors; try dynamic=False")
    axes = (tuple(axis for axis, size in enumerate(one.shape) if isinstance(size, torch.SymInt)) for one in tensors)
    return VaryingSizes(tuple(axes), {place: places[str(one)] for place, one in sizes.items()})


def number_arguments(module: fx.GraphModule) -> frozenset[int]:
    """Return the indices of arguments that are tensors of one element and are only read as numbers.

    Under ``dynamic=True`` PyTorch passes numbers of a module, such as ``eps``, in this way.
    """
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset(
        place for place, node in enumerate(nodes) if node.users and all(user.target == "item" for user in node.users)
    )


def replace_numbers(torch: ModuleType, module: fx.GraphModule, numbers: Mapping[int, float]) -> fx.GraphModule:
    """Return a sub-graph in which the arguments of `number_arguments` are replaced by their numbers."""
    indices = {node: i for i, node in enumerate(node for node in module.graph.nodes if node.op == "placeholder")}
    graph = torch.fx.Graph()
    new_nodes: dict[fx.Node, object] = {}
    for node in module.graph.nodes:
        index = indices.get(node.args[0], -1) if node.target == "item" else -1
        new_nodes[node] = numbers[index] if index in numbers else graph.node_copy(node, new_nodes.__getitem__)
    return torch.fx.GraphModule(module, graph) if numbers else module


def bind_constants(
    torch: ModuleType, module: fx.GraphModule, constants: Mapping[int, TorchTensor],
    sizes: Mapping[int, tuple[int, int]] | None = None,
) -> nn.Module:  # fmt: skip
    """Return a module in which some arguments are buffers or sizes of others; it takes the remaining ones."""
    size_sources = sizes or {}

    class SubGraph(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A sub-graph with its weights."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            for index, tensor in constants.items():
                self.register_buffer(f"{_CONSTANT}{index}", tensor.detach())

        def forward(self, *inputs: TorchArgument) -> object:
            given, places = iter(inputs), range(len(inputs) + len(constants) + len(size_sources))

            def argument(index: int) -> object:
                if index in size_sources:
                    number, axis = size_sources[index]
                    return inputs[number].shape[axis]
                return getattr(self, f"{_CONSTANT}{index}") if index in constants else next(given)

            return self.inner(*map(argument, places))

    return SubGraph().eval()


def _propose_blocks(graph_module: fx.GraphModule, refused: frozenset[fx.Node], fewest: int) -> list[object]:
    """Return the partitions that are worth compiling."""
    support = import_module("torch.fx.passes.operator_support")

    class Importable(support.OperatorSupportBase):  # type: ignore[misc,name-defined]
        """The operators that can be imported."""

        def is_node_supported(self, _modules: Mapping[str, nn.Module], node: fx.Node) -> bool:
            """Return whether a node can be in a block."""
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


def _make_block_module(
    torch: ModuleType, model: CompiledModel, constants: frozenset[int], strides: Sequence[tuple[int, ...]]
) -> nn.Module:
    """Return a module that calls a compiled block, which contains some of the arguments as constants.

    Its results have the strides that PyTorch expects: some operators read them, and the order of random numbers follows
    them.
    """

    def restride(tensor: TorchTensor, stride: tuple[int, ...]) -> TorchTensor:
        if tensor.stride() == stride:
            return tensor
        return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)

    class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A compiled block."""

        def forward(self, *arguments: TorchTensor) -> object:
            outputs = model(*(argument for place, argument in enumerate(arguments) if place not in constants))
            if isinstance(outputs, tuple):
                return tuple(map(restride, outputs, strides))
            return restride(outputs, strides[0])

    return Block()


def _collect_weights(program: ExportedProgram) -> dict[str, tuple[str, TorchTensor]]:
    """Return the tensors of a program that are not inputs, as placeholder name -> (target, tensor), in order.

    A token is an empty tensor, which PyTorch passes from one check of linear algebra to the next.
    """
    kinds = import_module("torch.export.graph_signature").InputKind
    weights = {}
    for input_spec in program.graph_signature.input_specs:
        if input_spec.kind == kinds.TOKEN:
            weights[input_spec.arg.name] = ("", import_module("torch").empty(0))
        elif input_spec.kind != kinds.USER_INPUT:
            tensors_by_name = program.constants if input_spec.target in program.constants else program.state_dict
            weights[input_spec.arg.name] = (input_spec.target, tensors_by_name[input_spec.target])
    return weights


def _constant_index(target: str) -> int | None:
    """Return the argument index of a constant of `bind_constants` from its name; None for other tensors."""
    number = target.removeprefix(_CONSTANT)
    return int(number) if number != target and number.isdigit() else None


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _count_text(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in names.items())
