"""TorchInductor: ``max-autotune`` compiles and measures only the Triton choices for a product that deserve it.

Source of names and shapes: torch/_inductor/select_algorithm.py and ir.py of PyTorch 2.14.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anatune.adapters.device import AUTO, GpuLike
from anatune.adapters.triton.operands import Argument, Operand
from anatune.adapters.triton.pruner import MatmulPruner
from anatune.model.pruning.subset import kept_count

__all__ = ["choice_pruner"]

_TEMPLATES = {
    "triton_mm": (False, False),
    "triton_mm_persistent": (False, True),
    "triton_mm_persistent_tma": (True, True),
}
"""Template of plain products -> whether operands come by descriptors, and blocks take tiles in turn."""


@dataclass
class _Choice:
    """A choice as the pruner sees configurations."""

    kwargs: dict[str, Argument]
    num_warps: int
    num_stages: int
    place: int


def choice_pruner(hw: GpuLike = AUTO, keep: float = 8) -> Callable[[Sequence[Argument]], list[Argument]]:
    """Return what ``torch._inductor.select_algorithm.add_preprocessing_fn`` takes.

    It leaves the `keep` best predicted Triton choices for a matrix product and whatever else there is (cuBLAS, CUTLASS,
    other templates), in the order given. Products whose extents are not known when they are compiled are left alone.

    Parameters
    ----------
    hw, keep
        As in `matmul_pruner`.

    Raises
    ------
    SpaceError
        `keep` is wrong.
    UnknownNameError, SpecError
        The device that is named is unknown.

    Warns
    -----
    NotJudgedWarning
        When a product is compiled that the model does not know; all its choices stay.
    """
    kept_count(keep, 1)
    pruners: dict[bool, MatmulPruner] = {
        rounded: MatmulPruner(hw, keep, dtype=None if rounded else "float32") for rounded in (True, False)
    }

    def preprocess(choices: Sequence[Argument]) -> list[Argument]:
        """Return the choices that deserve to be measured."""
        ours = [found for place, choice in enumerate(choices) if (found := _read(choice, place)) is not None]
        call = _call(choices[ours[0].place]) if ours else None
        if call is None:
            return list(choices)
        rounded = choices[ours[0].place].info_dict().get("allow_tf32") != "False" or not _is_float32(call["a"])
        kept = set(map(id, pruners[rounded].early_config_prune(ours, call)))
        left_out = {choice.place for choice in ours if id(choice) not in kept}
        return [choice for place, choice in enumerate(choices) if place not in left_out]

    return preprocess


def _read(choice: Argument, place: int) -> _Choice | None:
    """Return a choice's tile; None where it is no Triton kernel of a plain product."""
    template = re.sub(r"_\d+$", "", str(getattr(choice, "name", "")))
    if template not in _TEMPLATES:
        return None
    info = choice.info_dict()
    block_m, block_k, block_n = ast.literal_eval(info["tile_shape"])
    sizes = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": info["GROUP_M"]}
    descriptors, persistent = _TEMPLATES[template]
    options = {"descriptors": descriptors, "persistent": persistent}
    return _Choice(sizes | options, info["num_warps"], info["num_stages"], place)


def _call(choice: Argument) -> dict[str, Argument] | None:
    """Return the product's arguments as a call of a kernel has them; None where an extent is not known."""
    layout = choice.layout
    try:
        a, b = (_operand(node.get_size(), node.get_stride(), node.get_dtype()) for node in choice.input_nodes[-2:])
        c = _operand(layout.size, layout.stride, layout.dtype)
    except (TypeError, ValueError):  # an extent is a symbol
        return None
    return {"a": a, "b": b, "c": c, "M": a.shape[0], "N": b.shape[-1], "K": a.shape[-1]}


def _operand(size: Sequence[Argument], stride: Sequence[Argument], dtype: Argument) -> Operand:
    return Operand(tuple(map(int, size)), tuple(map(int, stride)), dtype, dtype.itemsize)


def _is_float32(operand: Operand) -> bool:
    return str(operand.dtype).endswith("float32")
