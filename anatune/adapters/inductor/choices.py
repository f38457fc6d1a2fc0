"""Which of Inductor's choices for a matrix product deserve to be generated, compiled and measured.

Source of names and shapes: torch/_inductor/choices.py, kernel_inputs.py, select_algorithm.py and ir.py of PyTorch 2.13;
of keys and entries of the lookup table: torch/_inductor/lookup_table/choices.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from anatune.adapters.device import AUTO, GpuLike, find_gpu
from anatune.adapters.triton.operands import Argument, Operand, matmul_problem
from anatune.adapters.triton.pruner import MatmulPruner
from anatune.adapters.triton.tiles import propose
from anatune.arguments import checked_choice
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.pruning.subset import kept_count
from anatune.templates.triton.instructions import has_descriptors
from anatune.templates.triton.problem import MatmulProblem
from anatune.version import __version__

LIBRARY = ("measured", "predicted")
"""What becomes of cuBLAS and other libraries' kernels beside Triton's: see `inductor_choices`."""
_TEMPLATES = {
    "mm": (False, False),
    "mm_persistent": (False, True),
    "mm_persistent_tma": (True, True),
    "scaled_mm_device_tma_epilogue_scaling": (True, True),
}
"""Template of single products -> whether operands come by descriptors, and blocks take tiles in turn."""
_BEHIND = 1.05
"""Time of the best choice over that of the best tile, up to which a library is not worth measuring. Source: the best of
Triton's recorded tiles has 0.99 (A100) and 0.95 (H100) of cuBLAS' speed (float16, median)."""


@dataclass
class _Choice:
    """A choice as the pruner sees configurations."""

    kwargs: dict[str, Argument]
    num_warps: int
    num_stages: int
    place: int


class _Judge:
    """Says which choices for one product stay.

    Raises
    ------
    SpaceError
        `keep` is wrong.
    UnknownNameError, SpecError
        The device that is named is unknown.
    """

    def __init__(self, hw: GpuLike, keep: float) -> None:
        kept_count(keep, 1)
        self._pruners = {
            rounded: MatmulPruner(hw, keep, dtype=None if rounded else "float32") for rounded in (True, False)
        }

    def kept(self, ours: Sequence[_Choice], call: Mapping[str, Argument], *, rounded: bool) -> list[_Choice]:
        """Return the choices that are worth it, best first; `rounded`: float32 operands become tf32."""
        known = {id(choice): choice for choice in ours}
        return [known[id(found)] for found in self._pruner(call, rounded).early_config_prune(ours, dict(call))]

    def is_behind(self, best: _Choice, call: Mapping[str, Argument], *, rounded: bool) -> bool | None:
        """Return whether the best of the choices kept last is slower than a library; None: the product is not known.

        A library is taken to be as fast as the best tile that the model knows, whoever would write it.
        """
        pruner = self._pruner(call, rounded)
        problem, spec = pruner.product, pruner.hardware
        if not isinstance(problem, MatmulProblem):
            return None
        options = ((0, 1), (0, 1)) if has_descriptors(spec) else ((0,), (0,))
        found = propose(problem, spec, split_k=True, group_m=True, options=options)
        return pruner.explain(best).time_s > _BEHIND * found[0].time_s

    def _pruner(self, call: Mapping[str, Argument], rounded: bool) -> MatmulPruner:
        return self._pruners[rounded or not str(call["a"].dtype).endswith("float32")]


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
    judge = _Judge(hw, keep)

    def preprocess(choices: Sequence[Argument]) -> list[Argument]:
        """Return the choices that deserve to be measured."""
        ours = [found for place, choice in enumerate(choices) if (found := _of_caller(choice, place)) is not None]
        if not ours:
            return list(choices)
        first = choices[ours[0].place]
        call = _call(first.input_nodes[-2:], first.layout)
        if call is None:
            return list(choices)
        kept = judge.kept(ours, call, rounded=first.info_dict().get("allow_tf32") != "False")
        left_out = _left_out(ours, kept)
        return [choice for place, choice in enumerate(choices) if place not in left_out]

    return preprocess


def inductor_choices(hw: GpuLike = AUTO, keep: float = 4, library: str = "measured") -> Callable[[], Argument]:
    """Return what ``torch._inductor.config.inductor_choices_class`` takes, from PyTorch 2.13 on.

    Of Inductor's Triton kernels for a matrix product only the `keep` best predicted are generated; whatever else there
    is stays as it is, as do products whose extents are not known when they are compiled.

    Parameters
    ----------
    hw, keep
        As in `matmul_pruner`.
    library : {"measured", "predicted"}
        What becomes of the kernels of libraries (cuBLAS, CUTLASS, ...) where the model knows the product: they are
        measured beside the ones kept; or they are left out where one of Inductor's tiles is predicted to be as fast as
        any, and else the Triton ones are. "predicted" and ``keep=1`` together measure nothing for plain products.

    Raises
    ------
    SpaceError
        `keep` or `library` is wrong.
    UnknownNameError, SpecError
        The device that is named is unknown.

    Warns
    -----
    NotJudgedWarning
        When a product is compiled that the model does not know; all its choices stay.
    """
    judge = _Judge(hw, keep)
    measured = checked_choice("library", library, LIBRARY) == "measured"
    known = f"anatune {__version__}, hw={hw}, keep={keep}, library={library}"

    def pruned(kernel_inputs: Argument, choices: Sequence[Argument]) -> list[Argument]:
        """Return the choices that deserve to be generated."""
        ours = [found for place, choice in enumerate(choices) if (found := _of_template(choice, place)) is not None]
        call = _call(kernel_inputs.mat1mat2(), kernel_inputs.output_layout(flexible=False)) if ours else None
        if call is None:
            return list(choices)
        rounded = choices[ours[0].place].extra_kwargs.get("ALLOW_TF32", True)
        kept = judge.kept(ours, call, rounded=rounded)
        left_out = _left_out(ours, kept)
        behind = None if measured else judge.is_behind(kept[0], call, rounded=rounded)
        if behind is not None:
            libraries = {place for place, choice in enumerate(choices) if choice.template.uid.startswith("aten::")}
            if libraries:
                left_out |= {choice.place for choice in ours} if behind else libraries
        return [choice for place, choice in enumerate(choices) if place not in left_out]

    def make() -> Argument:
        """Return the object that Inductor asks."""
        base = import_module("torch._inductor.choices").InductorChoices

        def finalize(
            self: Argument, template_choices: Argument, kernel_inputs: Argument, *rest: Argument, **more: Argument
        ) -> list[Argument]:
            choices = base._finalize_template_configs(self, template_choices, kernel_inputs, *rest, **more)
            return pruned(kernel_inputs, choices) if hasattr(kernel_inputs, "mat1mat2") else list(choices)

        return type("AnatuneChoices", (base,), {"_finalize_template_configs": finalize, "uuid": lambda self: known})()

    return make


def _left_out(ours: Sequence[_Choice], kept: Sequence[_Choice]) -> set[int]:
    """Return the places in Inductor's list of those that are not kept."""
    return {choice.place for choice in ours} - {choice.place for choice in kept}


def _of_caller(choice: Argument, place: int) -> _Choice | None:
    """Return a choice whose code is there; None where it is no Triton kernel of a single product."""
    template = _template("triton_", re.sub(r"_\d+$", "", str(getattr(choice, "name", ""))))
    if template is None:
        return None
    info = choice.info_dict()
    block_m, block_k, block_n = ast.literal_eval(info["tile_shape"])
    sizes = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": info["GROUP_M"]}
    return _choice(template, sizes, info["num_warps"], info["num_stages"], place)


def _of_template(choice: Argument, place: int) -> _Choice | None:
    """Return a choice that has no code yet; None where it is no Triton kernel of a single product."""
    template = _template("triton::", choice.template.uid)
    if template is None:
        return None
    given = choice.params.to_kwargs()
    sizes = {name: given[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")}
    return _choice(template, sizes, given["num_warps"], given["num_stages"], place)


def _template(prefix: str, name: str) -> str | None:
    """Return which of `_TEMPLATES` a name with its prefix means."""
    template = name.removeprefix(prefix)
    return template if name.startswith(prefix) and template in _TEMPLATES else None


def _choice(template: str, sizes: dict[str, Argument], num_warps: int, num_stages: int, place: int) -> _Choice:
    descriptors, persistent = _TEMPLATES[template]
    return _Choice(sizes | {"descriptors": descriptors, "persistent": persistent}, num_warps, num_stages, place)


def _call(nodes: Sequence[Argument], layout: Argument) -> dict[str, Argument] | None:
    """Return the product's arguments as a call of a kernel has them; None where an extent is not known."""
    try:
        a, b = (_operand(node.get_size(), node.get_stride(), node.get_dtype()) for node in nodes)
        c = _operand(layout.size, layout.stride, layout.dtype)
    except (TypeError, ValueError):  # an extent is a symbol
        return None
    return {"a": a, "b": b, "c": c, "M": a.shape[0], "N": b.shape[-1], "K": a.shape[-1]}


def _operand(size: Sequence[Argument], stride: Sequence[Argument], dtype: Argument) -> Operand:
    return Operand(tuple(map(int, size)), tuple(map(int, stride)), dtype, dtype.itemsize)


_DTYPES = ("float32", "float16", "bfloat16")
_EPILOGUES = {(): "mm", ("bias",): "addmm"}
Entry = dict[str, str | int | bool]


def lookup_table(products: Iterable[Workload], hw: GpuLike = AUTO, keep: float = 1) -> dict[str, list[Entry]]:
    """Return a table for ``torch._inductor.config.lookup_table.table``; it can be written as JSON.

    Inductor looks it up when ``inductor_choices_class`` is its own ``LookupTableChoices``. With one entry for a product
    it generates that kernel and measures nothing; of several it measures these. `aten.addmm` asks cuBLAS apart, under a
    key of its own, so that stays in the race.

    Parameters
    ----------
    products : iterable of Workload
        Of `anatune.matmul`: float16, bfloat16 or float32 (as tf32), ``epilogue=("bias",)`` for an ``addmm`` with a row
        of bias; ``transpose_b=True`` is how ``torch.nn.Linear`` stores its weight. Extents are those that Inductor
        sees when it compiles.
    hw
        As in `matmul_pruner`.
    keep : int or float
        Entries of a product, or a share of the legal tiles.

    Raises
    ------
    SpaceError
        `keep` is wrong, or a workload is none of these.
    UnknownNameError, SpecError, DeviceError
        As `find_gpu`.
    """
    spec = find_gpu(hw)
    table: dict[str, list[Entry]] = {}
    for workload in products:
        key, problem = _key(workload), matmul_problem(workload)
        found = propose(problem, spec, split_k=False, group_m=True)
        table[key] = [
            {
                "template_id": "triton::mm",
                "BLOCK_M": tile["block_m"],
                "BLOCK_N": tile["block_n"],
                "BLOCK_K": tile["block_k"],
                "GROUP_M": tile["group_m"],
                "num_warps": tile["num_warps"],
                "num_stages": tile["num_stages"],
                "EVEN_K": problem.k % tile["block_k"] == 0,
            }
            for tile, _, _ in found[: kept_count(keep, len(found))]
        ]
    return table


def _key(workload: Workload) -> str:
    """Return the key of a product: dtype, shape and strides of each input, scalars, operator.

    Raises
    ------
    SpaceError
        It is no product that Inductor looks up.
    """
    if workload.operator != "matmul" or {workload.formats} - set(_DTYPES) or workload.epilogue not in _EPILOGUES:
        raise SpaceError(
            f"{workload.describe()}: Inductor looks up products by mm and addmm, expected a matmul of "
            f"{', '.join(_DTYPES)}, alone or with the step bias; leave it out"
        )
    m, n, k = (workload.extents[axis] for axis in "ijk")
    own, operator = workload.attribute, _EPILOGUES[workload.epilogue]
    inputs = [([m, k], [1, m] if own["transpose_a"] else [k, 1]), ([k, n], [1, k] if own["transpose_b"] else [n, 1])]
    scalars = ""
    if operator == "addmm":
        inputs.insert(0, ([m, n], [0, 1]))  # a row, spread over all rows
        scalars = "alpha=1&beta=1+"
    nodes = ", ".join(f"(torch.{workload.dtype}, {shape}, {strides})" for shape, strides in inputs)
    return f"({nodes})+{scalars}{operator}"
