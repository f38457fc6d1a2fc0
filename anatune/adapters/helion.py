"""Helion: its autotuner begins with the best predicted configurations and skips those predicted to be far slower.

Pass ``autotune_seed_configs=seed_configs(product)`` and ``autotune_config_filter=config_filter(product)`` if a product
is known when its kernel is decorated. ``autotuner_fn=guided_autotuner()`` derives both from the arguments of each call.

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
from anatune.arguments import quote
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, NotJudgedWarning, SpaceError
from anatune.model.pruning.subset import count_kept
from anatune.templates.triton.instructions import has_descriptors
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import score_tiles

__all__ = ["config_filter", "guided_autotuner", "seed_configs"]

ConfigLike: TypeAlias = Mapping[str, Argument]
"""A ``helion.Config``, or a dictionary with its values."""
Filter: TypeAlias = Callable[[ConfigLike], ConfigLike | None]
_ORDER = "mnk"
_FLAT, _PERSISTENT = ("flat", "xyz"), ("persistent_blocked", "persistent_interleaved")
_POINTER, _DESCRIPTOR = "pointer", "tensor_descriptor"


class _Product(NamedTuple):
    """A matrix product and how a kernel tiles it."""

    problem: MatmulProblem
    order: str
    """The axis of each block size, in the order of the kernel."""
    has_descriptors: bool = True


def seed_configs(
    product: Argument, hw: GpuLike = AUTO, keep: float = 4, order: str = _ORDER
) -> list[dict[str, Argument]]:
    """Return seeds for ``helion.kernel(autotune_seed_configs=...)``: configurations, best predicted first.

    Parameters
    ----------
    product
        A workload of `anatune.matmul`, or a Helion kernel bound to its arguments (``kernel.bind(args)``).
    hw
        The name, TOML file or spec of a device, or "auto": the device that the environment variable ANATUNE_HW names,
        otherwise the GPU of this machine.
    keep : int or float
        The number of configurations, each with another tile shape; or a share of the legal tile shapes.
    order : str
        The axis of each block size, in the order of ``hl.tile``. Only used if `product` is a workload.

    Raises
    ------
    SpaceError
        `keep` or `order` is wrong, or `product` is not a single matrix product with known extents.
    DeviceError, UnknownNameError, SpecError
        The device cannot be found, as in `find_gpu`.
    """
    matmul = _read_product(product, order)
    proposals = _propose_tiles(matmul, find_gpu(hw))
    return [
        {
            "block_sizes": [tile[f"block_{axis}"] for axis in matmul.order],
            "num_warps": tile["num_warps"],
            "num_stages": tile["num_stages"],
            "l2_groupings": [tile["group_m"]],
            "indexing": _DESCRIPTOR if tile.get("descriptors") else _POINTER,
            "pid_type": _PERSISTENT[1] if tile.get("persistent") else _FLAT[0],
        }
        for tile, _, _ in proposals[: count_kept(keep, len(proposals))]
    ]


def config_filter(product: Argument, hw: GpuLike = AUTO, within: float = 2.0, order: str = _ORDER) -> Filter:
    """Return a filter for ``helion.kernel(autotune_config_filter=...)``: it returns None for rejected configurations.

    The filter rejects a configuration that breaks a limit of the device, or whose predicted time is more than `within`
    times that of the best one. Configurations with options that the model does not know pass.

    Parameters
    ----------
    product, hw, order
        The same as in `seed_configs`.
    within : float
        The largest factor over the best predicted time, at least 1.

    Raises
    ------
    SpaceError
        `within` is below 1, or one of the errors of `seed_configs`.
    DeviceError, UnknownNameError, SpecError
        The device cannot be found, as in `find_gpu`.
    """
    _check_within(within)
    matmul, spec = _read_product(product, order), find_gpu(hw)
    longest_s = within * _propose_tiles(matmul, spec)[0].time_s

    @functools.cache
    def is_worth_it(row: tuple[int, ...]) -> bool:
        scores = score_tiles(matmul.problem, Tiles.of([row]), spec)
        return bool(scores.resources.rule[0] == 0 and scores.time_s[0] <= longest_s)

    def filter_config(config: ConfigLike) -> ConfigLike | None:
        """Return the configuration, or None if it is rejected."""
        try:
            tile_row = _read_tile(config, matmul.order)
        except (AttributeError, LookupError, TypeError):  # the values do not have Helion's form
            return config
        return config if tile_row is None or is_worth_it(tile_row) else None

    return filter_config


def guided_autotuner(hw: GpuLike = AUTO, keep: float = 4, within: float = 2.0) -> Callable[..., Argument]:
    """Return an autotuner for ``helion.kernel(autotuner_fn=...)``: Helion's search with seeds and a filter per call.

    The caller's own seeds come first, and the caller's own filter is asked first. Helion searches without this help if
    a kernel is not a matrix product, its extents are not known (``static_shapes=False``), or its backend is not Triton.

    Parameters
    ----------
    hw, keep, within
        The same as in `seed_configs` and `config_filter`.

    Raises
    ------
    SpaceError
        `keep` or `within` is wrong.

    Warns
    -----
    NotJudgedWarning
        The model does not know the kernel that is tuned.
    """
    count_kept(keep, 1)
    _check_within(within)

    def make(bound: Argument, args: Sequence[Argument], **options: Argument) -> Argument:
        """Return Helion's search for a kernel that is bound to its arguments."""
        default = import_module("helion.runtime.settings").default_autotuner_fn
        try:
            seeds, filter_config = seed_configs(bound, hw, keep), config_filter(bound, hw, within)
        except AnatuneError as error:
            warnings.warn(f"anatune, guided_autotuner: {error}; Helion searches alone", NotJudgedWarning, stacklevel=2)
            return default(bound, args, **options)
        with _extend_settings(bound.settings, seeds, filter_config):
            search = default(bound, args, **options)
        tune = search.autotune

        def autotune(*given: Argument, **named: Argument) -> Argument:
            """Return the best configuration of the search, and restore the kernel's settings."""
            with _extend_settings(bound.settings, seeds, filter_config):
                return tune(*given, **named)

        search.autotune = autotune
        return search

    return make


@contextlib.contextmanager
def _extend_settings(settings: Argument, seeds: list[dict[str, Argument]], filter_config: Filter) -> Iterator[None]:
    """Add seeds and a filter to the settings of a kernel within a with statement."""
    caller_seeds, caller_filter = settings.autotune_seed_configs, settings.autotune_config_filter
    first = [] if caller_seeds is None else [caller_seeds] if isinstance(caller_seeds, Mapping) else list(caller_seeds)

    def apply_filters(config: ConfigLike) -> ConfigLike | None:
        config_left = config if caller_filter is None else caller_filter(config)
        return None if config_left is None else filter_config(config_left)

    settings.autotune_seed_configs, settings.autotune_config_filter = [*first, *seeds], apply_filters
    try:
        yield
    finally:
        settings.autotune_seed_configs, settings.autotune_config_filter = caller_seeds, caller_filter


def _check_within(within: object) -> None:
    if isinstance(within, bool) or not isinstance(within, Real) or not float(within) >= 1:
        raise SpaceError(f"within is {quote(within)}, expected a number >= 1")


def _read_product(product: Argument, order: str) -> _Product:
    """Return the matrix product of a workload or a bound kernel, and how it is tiled."""
    if not isinstance(order, str) or sorted(order) != sorted(_ORDER):
        raise SpaceError(f"order is {quote(order)}, expected m, n and k in the order of the kernel's tiles")
    if isinstance(product, Workload):
        return _Product(matmul_problem(product), order)
    spec: Argument = getattr(product, "config_spec", None)
    if not hasattr(spec, "matmul_facts"):
        raise SpaceError(
            f"product is {quote(product)}, expected a workload of anatune.matmul(...) or a kernel of Helion 1.5 that "
            "is bound with kernel.bind(args)"
        )
    facts, block_ids = spec.matmul_facts, [block.block_id for block in spec.block_sizes]
    if spec.backend_name != "triton" or len(facts) != 1:
        raise SpaceError(f"the kernel has {len(facts)} products by {spec.backend_name}, expected one, by triton")
    fact = facts[0]
    axes = dict(zip((fact.m_block_id, fact.n_block_id, fact.k_block_id), _ORDER, strict=True))
    if set(axes) != set(block_ids) or (fact.lhs_ndim, fact.rhs_ndim) != (2, 2):
        raise SpaceError("the kernel's tiles are not those of a product of two matrices, expected tiles of m, n and k")
    extents = (fact.static_m, fact.static_n, fact.static_k)
    if None in extents:
        raise SpaceError("the kernel's extents are not known when it is compiled; set static_shapes=True")
    types = tuple(dtype_name(dtype) for dtype in (fact.lhs_dtype, fact.rhs_dtype))
    if "float32" in types and (precision := product.settings.dot_precision) not in ("ieee", "highest"):
        if precision not in ("tf32", "default"):
            raise SpaceError(f"dot_precision is {quote(precision)}, unknown to the model, expected tf32 or ieee")
        types = tuple("tf32" if name == "float32" else name for name in types)
    dtype, right_bytes = operand_types(None, None, types)
    choices = getattr(getattr(spec.indexing, "inner", None), "choices", ())
    problem = MatmulProblem(*extents, dtype, right_bytes=right_bytes)
    return _Product(problem, "".join(axes[block] for block in block_ids), _DESCRIPTOR in choices)


def _propose_tiles(matmul: _Product, spec: GpuSpec) -> list[Proposal]:
    """Return the tiles that a kernel could take, best first; raise SpaceError if none is legal."""
    described = matmul.has_descriptors and has_descriptors(spec) and not descriptor_fault({}, matmul.problem)
    options = ((0, 1) if described else (0,), (0, 1) if has_descriptors(spec) else (0,))
    proposals = propose(matmul.problem, spec, split_k=False, group_m=True, options=options)
    if not proposals:
        raise SpaceError(f"{matmul.problem.describe()}: every tile breaks a limit of {spec.name}")
    return proposals


def _read_tile(config: ConfigLike, order: str) -> tuple[int, ...] | None:
    """Return a configuration as a tile in the order of `TILE_FIELDS` and `OPTION_FIELDS`, or None if it is not known.

    An unrolled loop over k needs as much shared memory as one with a deeper block: Triton 3.9 allocates it so.

    Raises
    ------
    AttributeError, LookupError, TypeError
        The values do not have Helion's form.
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
    unrolled, stages = _loop_options(config, _DESCRIPTOR in ways)
    row = (
        block["m"], block["n"], block["k"] * unrolled, config.get("num_warps", 4), stages, 1,
        (config.get("l2_groupings") or (1,))[0], int(described), int(config.get("pid_type") in _PERSISTENT),
    )  # fmt: skip
    return row if all(type(value) is int and value >= 0 for value in row) and min(row[:7]) > 0 else None


def _loop_options(config: ConfigLike, has_descriptors: bool) -> tuple[int, int]:
    """Return the unroll factor and stages of the loop over k, as Helion's `get_tl_range_kwargs` computes them.

    Blocks are powers of two, so a factor of three counts as two: the filter passes too many rather than too few.
    """
    unrolled, loop_stages = ((config.get(name) or (0,))[-1] for name in ("range_unroll_factors", "range_num_stages"))
    stages = config.get("num_stages", 1)
    if has_descriptors:
        loop_stages = loop_stages if config.get("host_tensor_descriptors") else 0
        unrolled = 0 if stages > 1 else unrolled
    elif unrolled > 1 and config.get("num_warps", 4) > 1:
        loop_stages = min(loop_stages, 1)
    return 1 << (max(1, unrolled).bit_length() - 1), loop_stages or stages
