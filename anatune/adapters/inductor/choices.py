"""Selection of Inductor's choices for a matrix product before they are generated, compiled or measured.

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
from anatune.arguments import check_choice
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.pruning.subset import count_kept
from anatune.templates.triton.instructions import has_descriptors
from anatune.templates.triton.problem import MatmulProblem
from anatune.version import __version__

LIBRARY = ("measured", "predicted")
"""The ways to treat kernels of cuBLAS and other libraries, see `inductor_choices`."""
_TEMPLATES = {
    "mm": (False, False),
    "mm_persistent": (False, True),
    "mm_persistent_tma": (True, True),
    "scaled_mm_device_tma_epilogue_scaling": (True, True),
}
"""The template of a single product -> whether it uses tensor descriptors, and whether it is persistent."""
_BEHIND = 1.05
"""The largest ratio of the best choice's time to that of the best tile at which a library is not worth measuring.
Source: the best recorded tile of Triton reaches 0.99 (A100) and 0.95 (H100) of cuBLAS' speed (float16, median)."""


@dataclass
class _TileChoice:
    """One of Inductor's choices in the form of a ``triton.Config``, with its index in Inductor's list."""

    kwargs: dict[str, Argument]
    num_warps: int
    num_stages: int
    index: int


class _Judge:
    """The judge that says which choices for a product are kept.

    Raises
    ------
    SpaceError
        `keep` is wrong.
    UnknownNameError, SpecError
        The named device is unknown.
    """

    def __init__(self, hw: GpuLike, keep: float) -> None:
        count_kept(keep, 1)
        self._pruners = {
            rounded: MatmulPruner(hw, keep, dtype=None if rounded else "float32") for rounded in (True, False)
        }

    def select(self, ours: Sequence[_TileChoice], call: Mapping[str, Argument], *, rounded: bool) -> list[_TileChoice]:
        """Return the choices to keep, best first; `rounded` says whether float32 operands are rounded to tf32."""
        choice_by_id = {id(choice): choice for choice in ours}
        return [choice_by_id[id(found)] for found in self._pruner(call, rounded).early_config_prune(ours, dict(call))]

    def is_behind(self, best: _TileChoice, call: Mapping[str, Argument], *, rounded: bool) -> bool | None:
        """Return whether the best choice of the last `select` is slower than a library; None for an unknown product.

        A library is assumed to be as fast as the best tile of the model, whether or not Inductor offers that tile.
        """
        pruner = self._pruner(call, rounded)
        problem, spec = pruner.product, pruner.hardware
        if not isinstance(problem, MatmulProblem):
            return None
        options = ((0, 1), (0, 1)) if has_descriptors(spec) else ((0,), (0,))
        proposals = propose(problem, spec, split_k=True, group_m=True, options=options)
        return pruner.explain(best).time_s > _BEHIND * proposals[0].time_s

    def _pruner(self, call: Mapping[str, Argument], rounded: bool) -> MatmulPruner:
        return self._pruners[rounded or not str(call["a"].dtype).endswith("float32")]


def choice_pruner(hw: GpuLike = AUTO, keep: float = 8) -> Callable[[Sequence[Argument]], list[Argument]]:
    """Return a function for ``torch._inductor.select_algorithm.add_preprocessing_fn``.

    The function keeps the `keep` best predicted Triton choices for a matrix product and all other choices (cuBLAS,
    CUTLASS, other templates), in their order. It changes nothing for products whose extents are not known when they are
    compiled.

    Parameters
    ----------
    hw, keep
        The same as in `matmul_pruner`.

    Raises
    ------
    SpaceError
        `keep` is wrong.
    UnknownNameError, SpecError
        The named device is unknown.

    Warns
    -----
    NotJudgedWarning
        The model does not know a product that is compiled. All its choices are kept.
    """
    judge = _Judge(hw, keep)

    def preprocess(choices: Sequence[Argument]) -> list[Argument]:
        """Return the choices to measure."""
        ours = [found for index, choice in enumerate(choices) if (found := _read_generated(choice, index)) is not None]
        if not ours:
            return list(choices)
        first = choices[ours[0].index]
        call = _call(first.input_nodes[-2:], first.layout)
        if call is None:
            return list(choices)
        kept = judge.select(ours, call, rounded=first.info_dict().get("allow_tf32") != "False")
        left_out = _find_dropped(ours, kept)
        return [choice for index, choice in enumerate(choices) if index not in left_out]

    return preprocess


def inductor_choices(hw: GpuLike = AUTO, keep: float = 4, library: str = "measured") -> Callable[[], Argument]:
    """Return a value for ``torch._inductor.config.inductor_choices_class`` (PyTorch 2.13 and later).

    Inductor then generates only the `keep` best predicted Triton kernels for a matrix product. All other choices stay,
    and so do all choices for products whose extents are not known when they are compiled.

    Parameters
    ----------
    hw, keep
        The same as in `matmul_pruner`.
    library : {"measured", "predicted"}
        How to treat kernels of libraries (cuBLAS, CUTLASS, ...) for products that the model knows. "measured": they are
        measured beside the kept Triton kernels. "predicted": they are dropped if one of Inductor's tiles is predicted
        to be as fast as the best possible tile, and otherwise the Triton kernels are dropped. "predicted" together with
        ``keep=1`` measures nothing for plain products.

    Raises
    ------
    SpaceError
        `keep` or `library` is wrong.
    UnknownNameError, SpecError
        The named device is unknown.

    Warns
    -----
    NotJudgedWarning
        The model does not know a product that is compiled. All its choices are kept.
    """
    judge = _Judge(hw, keep)
    measured = check_choice("library", library, LIBRARY) == "measured"
    uuid = f"anatune {__version__}, hw={hw}, keep={keep}, library={library}"

    def select_choices(kernel_inputs: Argument, choices: Sequence[Argument]) -> list[Argument]:
        """Return the choices to generate."""
        ours = [found for index, choice in enumerate(choices) if (found := _read_template(choice, index)) is not None]
        call = _call(kernel_inputs.mat1mat2(), kernel_inputs.output_layout(flexible=False)) if ours else None
        if call is None:
            return list(choices)
        rounded = choices[ours[0].index].extra_kwargs.get("ALLOW_TF32", True)
        kept = judge.select(ours, call, rounded=rounded)
        left_out = _find_dropped(ours, kept)
        behind = None if measured else judge.is_behind(kept[0], call, rounded=rounded)
        if behind is not None:
            libraries = {index for index, choice in enumerate(choices) if choice.template.uid.startswith("aten::")}
            if libraries:
                left_out |= {choice.index for choice in ours} if behind else libraries
        return [choice for index, choice in enumerate(choices) if index not in left_out]

    def make() -> Argument:
        """Return the object that Inductor asks for its choices."""
        base = import_module("torch._inductor.choices").InductorChoices

        def finalize(
            self: Argument, template_choices: Argument, kernel_inputs: Argument, *rest: Argument, **more: Argument
        ) -> list[Argument]:
            choices = base._finalize_template_configs(self, template_choices, kernel_inputs, *rest, **more)
            return select_choices(kernel_inputs, choices) if hasattr(kernel_inputs, "mat1mat2") else list(choices)

        return type("AnatuneChoices", (base,), {"_finalize_template_configs": finalize, "uuid": lambda self: uuid})()

    return make


def _find_dropped(ours: Sequence[_TileChoice], kept: Sequence[_TileChoice]) -> set[int]:
    """Return the indices in Inductor's list of the choices that are dropped."""
    return {choice.index for choice in ours} - {choice.index for choice in kept}


def _read_generated(choice: Argument, index: int) -> _TileChoice | None:
    """Return a choice whose code is generated already, or None if it is not a Triton kernel of a single product."""
    template = _template("triton_", re.sub(r"_\d+$", "", str(getattr(choice, "name", ""))))
    if template is None:
        return None
    info = choice.info_dict()
    block_m, block_k, block_n = ast.literal_eval(info["tile_shape"])
    sizes = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": info["GROUP_M"]}
    return _make_choice(template, sizes, info["num_warps"], info["num_stages"], index)


def _read_template(choice: Argument, index: int) -> _TileChoice | None:
    """Return a choice whose code is not generated yet, or None if it is not a Triton kernel of a single product."""
    template = _template("triton::", choice.template.uid)
    if template is None:
        return None
    params = choice.params.to_kwargs()
    sizes = {name: params[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")}
    return _make_choice(template, sizes, params["num_warps"], params["num_stages"], index)


def _template(prefix: str, name: str) -> str | None:
    """Return the key of `_TEMPLATES` that a name with this prefix means, or None."""
    template = name.removeprefix(prefix)
    return template if name.startswith(prefix) and template in _TEMPLATES else None


def _make_choice(template: str, sizes: dict[str, Argument], num_warps: int, num_stages: int, index: int) -> _TileChoice:
    descriptors, persistent = _TEMPLATES[template]
    return _TileChoice(sizes | {"descriptors": descriptors, "persistent": persistent}, num_warps, num_stages, index)


def _call(nodes: Sequence[Argument], layout: Argument) -> dict[str, Argument] | None:
    """Return the arguments of a kernel that computes the product, or None if an extent is not known."""
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

    Inductor uses the table if ``inductor_choices_class`` is its own ``LookupTableChoices``. If a product has one entry,
    Inductor generates that kernel and measures nothing. If it has several, Inductor measures these. For `aten.addmm`,
    Inductor looks up cuBLAS under another key, so cuBLAS is measured as well.

    Parameters
    ----------
    products : iterable of Workload
        Workloads of `anatune.matmul` in float16, bfloat16 or float32 (computed as tf32). ``epilogue=("bias",)`` means
        an ``addmm`` with one row of bias. ``transpose_b=True`` is how ``torch.nn.Linear`` stores its weight. Extents
        have to be those that Inductor sees when it compiles.
    hw
        The same as in `matmul_pruner`.
    keep : int or float
        The number of entries for each product, or a share of its legal tiles.

    Raises
    ------
    SpaceError
        `keep` is wrong, or a workload is not such a product.
    UnknownNameError, SpecError, DeviceError
        The device cannot be found, as in `find_gpu`.
    """
    spec = find_gpu(hw)
    table: dict[str, list[Entry]] = {}
    for workload in products:
        key, problem = _key(workload), matmul_problem(workload)
        proposals = propose(problem, spec, split_k=False, group_m=True)
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
            for tile, _, _ in proposals[: count_kept(keep, len(proposals))]
        ]
    return table


def _key(workload: Workload) -> str:
    """Return Inductor's key of a product: dtype, shape and strides of each input, scalars, operator.

    Raises
    ------
    SpaceError
        Inductor does not look up such a workload.
    """
    if workload.operator != "matmul" or {workload.formats} - set(_DTYPES) or workload.epilogue not in _EPILOGUES:
        raise SpaceError(
            f"{workload.describe()}: Inductor's lookup table has mm and addmm only, expected a matmul of "
            f"{', '.join(_DTYPES)} without epilogue or with bias; leave this workload out"
        )
    m, n, k = (workload.extents[axis] for axis in "ijk")
    attributes, operator = workload.attribute, _EPILOGUES[workload.epilogue]
    inputs = [
        ([m, k], [1, m] if attributes["transpose_a"] else [k, 1]),
        ([k, n], [1, k] if attributes["transpose_b"] else [n, 1]),
    ]
    scalars = ""
    if operator == "addmm":
        inputs.insert(0, ([m, n], [0, 1]))  # one row, broadcast to all rows
        scalars = "alpha=1&beta=1+"
    nodes = ", ".join(f"(torch.{workload.dtype}, {shape}, {strides})" for shape, strides in inputs)
    return f"({nodes})+{scalars}{operator}"
