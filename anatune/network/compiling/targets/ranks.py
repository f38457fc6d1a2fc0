"""Tensor parallelism: the part of a PyTorch module that one of several ranks computes, and the bytes that it sends.

A plan divides linear layers by columns ("colwise") or by rows ("rowwise", whose sums are added up over all ranks), and
weights of experts (experts, outputs, inputs) likewise. Each rank has everything else. Source: Shoeybi et al.,
Megatron-LM (arXiv:1909.08053), section 3.
"""

from __future__ import annotations

import copy
import fnmatch
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from anatune.arguments import check_integer
from anatune.errors import SpaceError
from anatune.network.graph.torch.reading import symbols_of_program
from anatune.network.relax.frontends import export_module
from anatune.network.relax.ranges import Sizes
from anatune.untyped import ExportedProgram, TorchSize, TorchTensor, nn, torch

__all__ = ["Exchange", "divide_module"]

_MOST_RANKS = 1024
_ELEMENT_BYTES = 2
"""Bytes of an element that is sent."""
_WHOLE = ("embedding_rowwise", "replicated_with_grad_allreduce", "sequence_parallel")
"""Words of plans for layers that every rank has whole."""
_EXPERTS = {"colwise": 1, "packed_colwise": 1, "rowwise": 2}
"""Word of a plan for weights of experts -> dimension to divide; "packed" divides gate and up separately."""
_SUMMED = "moe_tp_experts"
"""The word for a module whose experts are divided: its outputs are added up over all ranks."""


class Exchange(NamedTuple):
    """The number of exchanges in a call, and the bytes that each rank sends in them."""

    number: int
    num_bytes: int


def divide_module(
    module: nn.Module, inputs: TorchTensor | Sequence[TorchTensor], ranks: int, plan: Mapping[str, str] | None = None,
    dynamic_shapes: object = None, sizes: Sizes | None = None,
) -> tuple[nn.Module, Exchange]:  # fmt: skip
    """Return one rank's part of a module on PyTorch's meta device, and the tensors that it sends in a call.

    A sum over N ranks is sent around a ring: each rank sends 2 (N - 1) / N of it. A part of the outputs is sent N - 1
    times.

    Parameters
    ----------
    module : torch.nn.Module
        The whole module, on the meta device.
    inputs : torch.Tensor, or sequence of them
        Inputs of one rank, on the meta device.
    plan : mapping of str to str, optional
        Name of a layer, with wildcards -> "colwise", "colwise_gather_output" or "rowwise"; name of weights of experts
        -> "colwise", "packed_colwise" or "rowwise"; name of the module that has them -> "moe_tp_experts". The default
        is the plan (``tp_plan``) of the module or of its first part with one, as in models of transformers.
    dynamic_shapes, sizes
        As `anatune.compare`; tensors that ranks send must have a fixed size.

    Raises
    ------
    WorkloadError
        The module cannot be exported.
    SpaceError
        There is no plan, a word of the plan is unknown, or a size is not divisible.
    """
    torch = import_module("torch")
    check_integer("compare: ranks", ranks, 1, _MOST_RANKS)
    if not isinstance(module, torch.nn.Module) or not any(one.is_meta for one in module.parameters()):
        raise SpaceError("compare: ranks needs a torch.nn.Module on the meta device (torch.device('meta'))")
    prefix, plan_words = ("", plan) if plan else _find_plan(module)
    rank_module = copy.deepcopy(module)
    sent: list[tuple[float, TorchSize]] = []
    """The exchanges: the number of times that the elements of each are sent, and the number of elements."""

    def record_reduce(_module: nn.Module, _inputs: object, output: TorchTensor) -> None:
        sent.append((2 * (ranks - 1) / ranks, math.prod(output.shape)))

    def record_gather(_module: nn.Module, _inputs: object, output: TorchTensor) -> None:
        sent.append((ranks - 1, math.prod(output.shape)))

    def word_of(name: str) -> str:
        local_name = name.removeprefix(prefix)
        return next((word for pattern, word in plan_words.items() if fnmatch.fnmatchcase(local_name, pattern)), "")

    for name, weight in list(rank_module.named_parameters()):
        word, (owner, _, weight_name) = word_of(name), name.rpartition(".")
        if weight.dim() != 3 or not word or word in _WHOLE:
            continue
        if word not in _EXPERTS:
            raise SpaceError(f"compare: the plan says {word} for experts {name}, expected {', '.join(_EXPERTS)}")
        setattr(rank_module.get_submodule(owner), weight_name, _divide_experts(torch, name, weight, ranks, word))
    hooks = []
    for name, layer in list(rank_module.named_modules()):
        word = word_of(name)
        if word == _SUMMED:
            hooks.append(layer.register_forward_hook(record_reduce))
        if not word or word in (*_WHOLE, _SUMMED):
            continue
        if word not in ("colwise", "colwise_gather_output", "rowwise") or not isinstance(layer, torch.nn.Linear):
            raise SpaceError(
                f"compare: the plan says {word} for {name} ({type(layer).__name__}), expected colwise, "
                "colwise_gather_output or rowwise for a linear layer; give another plan (rank_plan)"
            )
        part = _take_linear(torch, name, layer, ranks, by_rows=word == "rowwise")
        rank_module.set_submodule(name, part)
        if word != "colwise":
            hooks.append(part.register_forward_hook(record_reduce if word == "rowwise" else record_gather))
    if not any(one.shape != own.shape for one, own in zip(rank_module.parameters(), module.parameters(), strict=True)):
        raise SpaceError("compare: the plan divides no layer; give one with names of layers of the module (rank_plan)")
    program = export_module(rank_module, inputs, dynamic_shapes)  # tracing calls the hooks
    for hook in hooks:
        hook.remove()
    return rank_module, _exchange(program, sent, dict(sizes or {}))


def _exchange(program: ExportedProgram, sent: list[tuple[float, TorchSize]], given: Mapping[str, object]) -> Exchange:
    """Return the total of all exchanges in a call; `given` has sizes by name."""
    substitutions = {one.expression: given[one.name] for one in symbols_of_program(program) if one.name in given}
    total = 0.0
    for times, number in sent:
        element_count = number.node.expr.subs(substitutions) if hasattr(number, "node") else number
        if not str(element_count).isdecimal():
            raise SpaceError("compare: the sizes of tensors that ranks send vary; give values for them (sizes)")
        total += times * int(element_count) * _ELEMENT_BYTES
    return Exchange(len(sent), math.ceil(total))


def _find_plan(module: nn.Module) -> tuple[str, Mapping[str, str]]:
    """Return the plan of a module's first part that has one, and the prefix of the names in it."""
    for name, part in module.named_modules():
        words = getattr(part, "tp_plan", None)
        if isinstance(words, Mapping) and words:
            return f"{name}." if name else "", words
    raise SpaceError(
        f"compare: {type(module).__name__} has no plan (tp_plan); give one, such as rank_plan={{'*.q': 'colwise'}}"
    )


def _take_linear(torch: ModuleType, name: str, layer: torch.nn.Linear, ranks: int, *, by_rows: bool) -> torch.nn.Linear:
    """Return one rank's part of a linear layer."""
    sizes = [layer.in_features, layer.out_features]
    sizes[not by_rows] = _divide_size(name, sizes[not by_rows], ranks, by_rows=by_rows)
    has_bias = layer.bias is not None
    return torch.nn.Linear(*sizes, bias=has_bias, device="meta", dtype=layer.weight.dtype).eval()


def _divide_experts(torch: ModuleType, name: str, weight: TorchTensor, ranks: int, word: str) -> torch.nn.Parameter:
    """Return one rank's part of the weights of all experts."""
    sizes, axis, parts = list(weight.shape), _EXPERTS[word], 1 + word.startswith("packed")
    sizes[axis] = parts * _divide_size(name, sizes[axis] // parts, ranks, by_rows=word == "rowwise")
    return torch.nn.Parameter(torch.empty(sizes, device="meta", dtype=weight.dtype))


def _divide_size(name: str, size: int, ranks: int, *, by_rows: bool) -> int:
    """Return one rank's number of inputs or outputs."""
    if size % ranks:
        raise SpaceError(
            f"compare: the {size} {'inputs' if by_rows else 'outputs'} of {name} are not divisible by {ranks} ranks; "
            "take another number of ranks"
        )
    return size // ranks
