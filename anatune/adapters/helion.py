"""Helion: its autotuner begins with what the model would take, and compiles nothing that is predicted to be far slower.

``autotune_seed_configs=seed_configs(product)`` and ``autotune_config_filter=config_filter(product)`` are for a product
that is known when a kernel is decorated; ``autotuner_fn=guided_autotuner()`` makes both of whatever it is called with.

Source of names and shapes: helion/runtime/config.py, runtime/settings.py and autotuner/config_spec.py of Helion 1.5.1.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from numbers import Real
from typing import NamedTuple, TypeAlias

from anatune.adapters.device import AUTO, GpuLike, find_gpu
from anatune.adapters.triton.operands import Argument, descriptor_fault, dtype_name, matmul_problem, operand_types
from anatune.adapters.triton.tiles import Proposal, propose
from anatune.arguments import shown
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, NotJudgedWarning, SpaceError
from anatune.model.pruning.subset import kept_count
from anatune.templates.triton.instructions import has_descriptors
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import score_tiles

__all__ = ["config_filter", "guided_autotuner", "seed_configs"]

ConfigLike: TypeAlias = Mapping[str, Argument]
"""A ``helion.Config``, or a dictionary of its values."""
Filter: TypeAlias = Callable[[ConfigLike], ConfigLike | None]
_ORDER = "mnk"
_FLAT, _PERSISTENT = ("flat", "xyz"), ("persistent_blocked", "persistent_interleaved")
_POINTER, _DESCRIPTOR = "pointer", "tensor_descriptor"


class _Product(NamedTuple):
    """A product and how a kernel tiles it."""

    problem: MatmulProblem
    order: str
    """The axis of each of its block sizes."""
    has_descriptors: bool = True


def seed_configs(
    product: Argument, hw: GpuLike = AUTO, keep: float = 4, order: str = _ORDER
) -> list[dict[str, Argument]]:
    """Return what ``helion.kernel(autotune_seed_configs=...)`` takes: where its search begins, best predicted first.

    Parameters
    ----------
    product
        A workload of `anatune.matmul`, or a kernel bound to its arguments (``kernel.bind(args)``), which says it.
    hw
        A device's name, a TOML file or a spec; "auto": what ANATUNE_HW names, else the present device.
    keep : int or float
        How many, each of another shape; or a share of the shapes that are legal.
    order : str
        The axis of each block size, in the order of ``hl.tile``, where `product` is a workload.

    Raises
    ------
    SpaceError
        `keep` or `order` is wrong, or `product` is no single matrix product of known extents.
    DeviceError, UnknownNameError, SpecError
        As `find_gpu`.
    """
    found = _product_of(product, order)
    proposals = _proposals(found, find_gpu(hw))
    return [
        {
            "block_sizes": [tile[f"block_{axis}"] for axis in found.order],
            "num_warps": tile["num_warps"],
            "num_stages": tile["num_stages"],
            "l2_groupings": [tile["group_m"]],
            "indexing": _DESCRIPTOR if tile.get("descriptors") else _POINTER,
            "pid_type": _PERSISTENT[1] if tile.get("persistent") else _FLAT[0],
        }
        for tile, _, _ in proposals[: kept_count(keep, len(proposals))]
    ]


def config_filter(product: Argument, hw: GpuLike = AUTO, within: float = 2.0, order: str = _ORDER) -> Filter:
    """Return what ``helion.kernel(autotune_config_filter=...)`` takes: None for what is not worth compiling.

    That is a configuration which breaks a limit of the device, or is predicted to take more than `within` times as
    long as the best that the model knows. One with options that the model does not know, or cannot read, passes.

    Parameters
    ----------
    product, hw, order
        As in `seed_configs`.
    within : float

    Raises
    ------
    SpaceError
        `within` is below 1, or as `seed_configs`.
    DeviceError, UnknownNameError, SpecError
        As `find_gpu`.
    """
    _check_within(within)
    found, spec = _product_of(product, order), find_gpu(hw)
    longest_s = within * _proposals(found, spec)[0].time_s

    @functools.cache
    def is_worth_it(row: tuple[int, ...]) -> bool:
        scores = score_tiles(found.problem, Tiles.of([row]), spec)
        return bool(scores.resources.rule[0] == 0 and scores.time_s[0] <= longest_s)

    def passed(config: ConfigLike) -> ConfigLike | None:
        """Return the configuration, or None."""
        try:
            row = _row(config, found.order)
        except (AttributeError, LookupError, TypeError):  # values of another form than Helion's
            return config
        return config if row is None or is_worth_it(row) else None

    return passed


def guided_autotuner(hw: GpuLike = AUTO, keep: float = 4, within: float = 2.0) -> Callable[..., Argument]:
    """Return what ``helion.kernel(autotuner_fn=...)`` takes: Helion's own search, with seeds and filter for each call.

    Seeds of the caller come first, a filter of the caller is asked first. Kernels that are no matrix product, extents
    that are not known (``static_shapes=False``) and other backends than Triton are searched as without it.

    Parameters
    ----------
    hw, keep, within
        As in `seed_configs` and `config_filter`.

    Raises
    ------
    SpaceError
        `keep` or `within` is wrong.

    Warns
    -----
    NotJudgedWarning
        When a kernel is tuned that the model does not know.
    """
    kept_count(keep, 1)
    _check_within(within)

    def make(bound: Argument, args: Sequence[Argument], **options: Argument) -> Argument:
        """Return Helion's search for a kernel that is bound to arguments."""
        default = import_module("helion.runtime.settings").default_autotuner_fn
        try:
            seeds, passed = seed_configs(bound, hw, keep), config_filter(bound, hw, within)
        except AnatuneError as error:
            warnings.warn(
                f"anatune, guided_autotuner: {error}: the search is Helion's own", NotJudgedWarning, stacklevel=2
            )
            return default(bound, args, **options)
        with _guided(bound.settings, seeds, passed):
            search = default(bound, args, **options)
        tune = search.autotune

        def autotune(*given: Argument, **named: Argument) -> Argument:
            """Return the configuration that the search finds; settings are Helion's own again afterwards."""
            with _guided(bound.settings, seeds, passed):
                return tune(*given, **named)

        search.autotune = autotune
        return search

    return make


@contextlib.contextmanager
def _guided(settings: Argument, seeds: list[dict[str, Argument]], passed: Filter) -> Iterator[None]:
    """Add seeds and a filter to the settings of a kernel, for a while."""
    own, asked = settings.autotune_seed_configs, settings.autotune_config_filter
    first = [] if own is None else [own] if isinstance(own, Mapping) else list(own)

    def both(config: ConfigLike) -> ConfigLike | None:
        found = config if asked is None else asked(config)
        return None if found is None else passed(found)

    settings.autotune_seed_configs, settings.autotune_config_filter = [*first, *seeds], both
    try:
        yield
    finally:
        settings.autotune_seed_configs, settings.autotune_config_filter = own, asked


def _check_within(within: object) -> None:
    if isinstance(within, bool) or not isinstance(within, Real) or not float(within) >= 1:
        raise SpaceError(f"within is {shown(within)}, expected a number >= 1")


def _product_of(product: Argument, order: str) -> _Product:
    """Return the product of a workload or of a bound kernel, and how it is tiled."""
    if not isinstance(order, str) or sorted(order) != sorted(_ORDER):
        raise SpaceError(f"order is {shown(order)}, expected the letters m, n and k in the order of the kernel's tiles")
    if isinstance(product, Workload):
        return _Product(matmul_problem(product), order)
    spec: Argument = getattr(product, "config_spec", None)
    if not hasattr(spec, "matmul_facts"):
        raise SpaceError(
            f"product is {shown(product)}, expected a workload of anatune.matmul(...) or a kernel of Helion 1.5, bound "
            "as kernel.bind(args)"
        )
    facts, found = spec.matmul_facts, [block.block_id for block in spec.block_sizes]
    if spec.backend_name != "triton" or len(facts) != 1:
        raise SpaceError(f"the kernel has {len(facts)} products by {spec.backend_name}, expected one, by triton")
    fact = facts[0]
    axes = dict(zip((fact.m_block_id, fact.n_block_id, fact.k_block_id), _ORDER, strict=True))
    if set(axes) != set(found) or (fact.lhs_ndim, fact.rhs_ndim) != (2, 2):
        raise SpaceError("the kernel has other tiles than those of one product of two matrices, expected m, n and k")
    extents = (fact.static_m, fact.static_n, fact.static_k)
    if None in extents:
        raise SpaceError("the kernel's extents are not known when it is compiled, expected static_shapes=True")
    types = tuple(dtype_name(dtype) for dtype in (fact.lhs_dtype, fact.rhs_dtype))
    if "float32" in types and (precision := product.settings.dot_precision) not in ("ieee", "highest"):
        if precision not in ("tf32", "default"):
            raise SpaceError(f"dot_precision is {shown(precision)}, which is not modelled, expected tf32 or ieee")
        types = tuple("tf32" if name == "float32" else name for name in types)
    dtype, right_bytes = operand_types(None, None, types)
    choices = getattr(getattr(spec.indexing, "inner", None), "choices", ())
    problem = MatmulProblem(*extents, dtype, right_bytes=right_bytes)
    return _Product(problem, "".join(axes[block] for block in found), _DESCRIPTOR in choices)


def _proposals(found: _Product, spec: GpuSpec) -> list[Proposal]:
    """Return the tiles that a kernel could take, best first; raise SpaceError where none is legal."""
    described = found.has_descriptors and has_descriptors(spec) and not descriptor_fault({}, found.problem)
    options = ((0, 1) if described else (0,), (0, 1) if has_descriptors(spec) else (0,))
    proposals = propose(found.problem, spec, split_k=False, group_m=True, options=options)
    if not proposals:
        raise SpaceError(f"no tile of {found.problem.describe()} keeps to the limits of {spec.name}")
    return proposals


def _row(config: ConfigLike, order: str) -> tuple[int, ...] | None:
    """Return a configuration as a tile, in the order of `TILE_FIELDS` and `OPTION_FIELDS`; None where it is not known.

    A loop over k that is unrolled stages what a step as much deeper would: so Triton 3.9 allocates it.

    Raises
    ------
    AttributeError, LookupError, TypeError
        Values are of another form than Helion's.
    """
    sizes = config.get("block_sizes") or ()
    unknown = (
        len(sizes) != len(order),
        config.get("maxnreg") is not None,
        any(config.get("range_warp_specializes") or ()),
        any(config.get("static_ranges") or ()),
        config.get("pid_type", _FLAT[0]) not in (*_FLAT, *_PERSISTENT),
    )
    if any(unknown):
        return None
    block = dict(zip(order, sizes, strict=True))
    loads = config.get("indexing") or _POINTER
    ways = [loads] if isinstance(loads, str) else list(loads)
    described = set(ways[:2]) == {_DESCRIPTOR}
    unrolled, stages = _loop(config, _DESCRIPTOR in ways)
    row = (
        block["m"], block["n"], block["k"] * unrolled, config.get("num_warps", 4), stages, 1,
        (config.get("l2_groupings") or (1,))[0], int(described), int(config.get("pid_type") in _PERSISTENT),
    )  # fmt: skip
    return row if all(type(value) is int and value >= 0 for value in row) and min(row[:7]) > 0 else None


def _loop(config: ConfigLike, has_descriptors: bool) -> tuple[int, int]:
    """Return how often the loop over k is unrolled, and its stages, as Helion writes it (`get_tl_range_kwargs`).

    Blocks are powers of two: a factor of three counts as two, since a filter had rather let something through.
    """
    unrolled, loop_stages = ((config.get(name) or (0,))[-1] for name in ("range_unroll_factors", "range_num_stages"))
    stages = config.get("num_stages", 1)
    if has_descriptors:
        loop_stages = loop_stages if config.get("host_tensor_descriptors") else 0
        unrolled = 0 if stages > 1 else unrolled
    elif unrolled > 1 and config.get("num_warps", 4) > 1:
        loop_stages = min(loop_stages, 1)
    return 1 << (max(1, unrolled).bit_length() - 1), loop_stages or stages
