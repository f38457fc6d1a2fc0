"""Random kernels: workloads and legal schedules, built and compared with plain sums in float64, edges included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.fuzz.data import EDGES, drawn, edged
from bench.fuzz.oracle import _EPSILON as EPSILON
from bench.fuzz.oracle import is_float
from bench.fuzz.program import Array, Outcome

__all__ = ["KernelCase", "judge", "make", "text"]

_FLOATS = ("float32", "float32", "float32", "float16", "bfloat16", "int8", "float64")
_STEPS = ((), (), ("bias",), ("relu",), ("bias", "relu"), ("add", "relu"), ("bias", "add"))
_MOST_POINTS = 400_000


@dataclass(frozen=True)
class KernelCase:
    """A schedule, and which edge inputs it is called with."""

    kind: str
    seed: int
    schedule: str
    threads: int
    edges: tuple[str, ...]


def _size(random: np.random.Generator, most: int = 40) -> int:
    return int(random.choice([1, 2, 3, 4, 7, 8, 11, 16, 17, 19, 24, 31, 32, 40][: 14 if most >= 40 else 6]))


def _workload(random: np.random.Generator) -> Any:
    """Return a workload of a few hundred thousand points at most."""
    import anatune

    dtype = str(random.choice(_FLOATS))
    steps = _STEPS[int(random.integers(len(_STEPS)))] if dtype != "int8" else ()
    size = lambda: _size(random)  # noqa: E731
    kind = str(
        random.choice(
            ["matmul", "matmul", "batch", "conv", "conv", "depthwise", "pool", "reduction", "elementwise", "einsum"]
        )
    )
    if kind == "matmul":
        turned = {"transpose_a": bool(random.random() < 0.2), "transpose_b": bool(random.random() < 0.3)}
        return anatune.matmul(size(), size(), size(), dtype=dtype, epilogue=steps, **turned)
    if kind == "batch":
        return anatune.batch_matmul(_size(random, 8), size(), size(), size(), dtype=dtype, epilogue=steps)
    if kind == "reduction":
        return anatune.reduction(
            (size(), size()), int(random.integers(2)), str(random.choice(["sum", "max", "mean"])), "float32"
        )
    if kind == "elementwise":
        return anatune.elementwise((size(), size()), str(random.choice(["relu", "add", "multiply"])), "float32")
    if kind == "einsum":
        rows, depth, columns = size(), size(), size()
        return anatune.einsum("ij,jk->ik", [(rows, depth), (depth, columns)])
    rank = int(random.choice([1, 2, 2, 2, 3])) if kind == "conv" else 2
    taps = [int(random.choice([1, 2, 3])) for _ in range(rank)]
    dilation = tuple(int(random.choice([1, 1, 2])) for _ in range(rank))
    sizes = [int(random.integers((tap - 1) * step + 1, 12)) for tap, step in zip(taps, dilation, strict=True)]
    padding = tuple(tap // 2 if random.random() < 0.6 else 0 for tap in taps)
    options = {
        "stride": tuple(int(random.choice([1, 1, 2])) for _ in range(rank)),
        "padding": padding,
        "dilation": dilation,
    }
    layout = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}[rank][int(random.random() < 0.3)]
    batch, channels = int(random.choice([1, 2])), int(random.choice([1, 3, 4, 8, 16]))
    if kind == "pool":
        build = anatune.max_pool2d if random.random() < 0.5 else anatune.avg_pool2d
        return build(batch, channels, *sizes, *taps, layout=layout, **options)
    if kind == "depthwise":
        return anatune.depthwise_conv2d(
            batch, channels, *sizes, *taps, layout=layout, dtype=dtype, epilogue=steps, **options
        )
    groups = int(random.choice([1, 1, 2]))
    build = {1: anatune.conv1d, 2: anatune.conv2d, 3: anatune.conv3d}[rank]
    filters = groups * int(random.choice([1, 4, 8, 17]))
    return build(
        batch,
        groups * channels,
        *sizes,
        filters,
        *taps,
        groups=groups,
        layout=layout,
        dtype=dtype,
        epilogue=steps,
        **options,
    )


def make(seed: int) -> KernelCase:
    """Return the case of a seed: a legal point of a space that takes the workload."""
    import anatune
    from anatune.errors import AnatuneError

    random = np.random.default_rng([7, seed])
    while True:
        try:
            workload = _workload(random)
        except AnatuneError:
            continue
        is_gpu = random.random() < 0.1
        templates = (
            ["cuda", "thin", "pipelined"] if is_gpu else ["cpu", "cpu", "cpu", "winograd", "fp16_accumulation", "amx"]
        )
        threads = int(random.choice([1, 1, 2]))
        try:
            space = anatune.space(
                workload,
                "rtx3090" if is_gpu else "host",
                template=str(random.choice(templates)),
                threads=None if is_gpu else threads,
            )
            found = space.sample(1, int(random.integers(1 << 30)))
        except AnatuneError:
            continue
        if found:
            return KernelCase(
                "kernels",
                seed,
                found[0].to_json(),
                threads,
                tuple(str(one) for one in random.choice(EDGES, 2, replace=False)),
            )


def judge(case: KernelCase) -> Outcome:
    """Return what becomes of a case; exceptions of anatune's pass."""
    import anatune

    schedule = anatune.Schedule.from_json(case.schedule)
    workload = schedule.workload
    operators = (workload.operator, schedule.template)
    verified = anatune.verify(schedule, threads=case.threads, seed=case.seed)
    if not verified.ok:
        return Outcome("wrong", f"verify: {verified.message}", operators, case)
    if schedule.hardware.kind == "gpu" or not _is_plain(workload):
        return Outcome("right", "", operators)
    kernel = anatune.build(schedule, threads=case.threads)
    random = np.random.default_rng([8, case.seed])
    for edge in ("", *case.edges):
        arrays = []
        for access in (*workload.reads, *workload.epilogue_reads):
            array = drawn(random, access.shape, access.dtype)
            arrays.append(edged(random, array, edge) if edge else array)
        result = np.asarray(kernel(*arrays))
        why = _fault(workload, arrays, result, schedule.template)
        if why:
            return Outcome("wrong", f"{edge or 'ordinary'} inputs: {why}", operators, case)
    return Outcome("right", "", operators)


def _is_plain(workload: Any) -> bool:
    """Return whether `_computed` takes a workload: a nest of one of the plain bodies, and not too large."""
    plain = workload.body in ("multiply_add", "multiply", "max", "relu", "add", "average", "sum")
    zeros = any(value for name, value in workload.attributes if name.endswith("zero_point"))
    return plain and not zeros and int(np.prod([axis.extent for axis in workload.axes])) <= _MOST_POINTS


def _at(access: Any, points: dict[str, Array], array: Array, outside: float) -> Array:
    """Return what an access reads at all points."""
    places = [
        sum((term.coefficient * points[term.axis] for term in terms), np.int64(0)) + offset
        for terms, offset in zip(access.indices, access.offsets, strict=True)
    ]
    places = np.broadcast_arrays(*places, next(iter(points.values())))[:-1]
    inside = np.ones(places[0].shape, bool)
    for place, extent in zip(places, access.shape, strict=True):
        inside &= (place >= 0) & (place < extent)
    clipped = tuple(np.clip(place, 0, extent - 1) for place, extent in zip(places, access.shape, strict=True))
    return np.where(inside, array[clipped], outside)


def _computed(workload: Any, arrays: list[Array], *, skips_padding: bool = False) -> tuple[Array, Array]:
    """Return the result in float64, and how large what was added up to it is; padding is zeros, or is left out."""
    axes = (*workload.spatial_axes, *workload.reduction_axes)
    grids = np.meshgrid(*(np.arange(axis.extent) for axis in axes), indexing="ij")
    points = {axis.name: grid for axis, grid in zip(axes, grids, strict=True)}
    outside = -np.inf if workload.body == "max" else 0.0
    wide = [array.astype(np.float64) for array in arrays]
    operands = [_at(access, points, array, outside) for access, array in zip(workload.reads, wide, strict=False)]
    reduced = tuple(range(len(workload.spatial_axes), len(axes)))
    value = operands[0]
    for one in operands[1:]:
        value = value * one if workload.body in ("multiply_add", "multiply") else value + one
    if skips_padding and workload.body in ("multiply_add", "multiply"):
        for access, array in zip(workload.reads, wide, strict=False):
            value = np.where(_at(access, points, np.zeros(array.shape), 1.0) > 0, 0.0, value)
    size = np.abs(value)
    if workload.body == "relu":
        value = np.maximum(value, 0)
    if reduced:
        size = size.sum(reduced)
        value = value.max(reduced) if workload.body == "max" else value.sum(reduced)
    if workload.body == "average":
        count = np.prod([axis.extent for axis in workload.reduction_axes])
        value, size = value / count, size / count
    spatial = {name: grid[(..., *(0,) * len(reduced))] for name, grid in points.items()}
    given = dict(
        zip(
            (access.tensor for access in workload.epilogue_reads),
            zip(workload.epilogue_reads, wide[len(workload.reads) :], strict=True),
            strict=True,
        )
    )
    for step in workload.epilogue:
        if step == "relu":
            value = np.maximum(value, 0)
            continue
        access, array = given["residual" if step == "add" else step]
        other = _at(access, spatial, array, 0.0)
        value = value * other if step == "scale" else value + other
        size = size * np.abs(other) if step == "scale" else size + np.abs(other)
    target = tuple(
        sum((term.coefficient * spatial[term.axis] for term in terms), np.int64(0)) + offset
        for terms, offset in zip(workload.write.indices, workload.write.offsets, strict=True)
    )
    result, magnitude = np.zeros(workload.write.shape), np.zeros(workload.write.shape)
    result[target], magnitude[target] = value, size
    return result, magnitude


def _fault(workload: Any, arrays: list[Array], got: Array, template: str) -> str:
    """Return what is wrong with a result; "": no element is further off than rounding explains.

    A weight that is not finite may be multiplied by the zeros of padding, or not.
    """
    bad, wide, expected = _compared(workload, arrays, got, template)
    if bad.any() and not all(np.isfinite(array).all() for array in arrays):
        bad &= _compared(workload, arrays, got, template, skips_padding=True)[0]
    return _where(bad, wide, expected)


def _compared(
    workload: Any, arrays: list[Array], got: Array, template: str, *, skips_padding: bool = False
) -> tuple[Array, Array, Array]:
    """Return which elements are wrong, what they are, and what they should be."""
    with np.errstate(all="ignore"):
        expected, size = _computed(workload, arrays, skips_padding=skips_padding)
        dtype = workload.write.dtype
        if not is_float(dtype):
            limits = np.iinfo(dtype)
            return (got != expected) & (np.abs(expected) < limits.max), got, expected
        count = max(1, int(np.prod([axis.extent for axis in workload.reduction_axes])))
        sums = EPSILON["float64" if dtype == "float64" else "float32"]
        if template == "fp16_accumulation":
            sums = EPSILON["float16"]
        if template == "winograd":  # sums of whole tiles, of both signs
            size = np.full_like(size, 16 * np.nanmax(np.where(np.isfinite(size), size, 0), initial=0))
        slack = sums * (8 + 4 * np.sqrt(count)) * size + 2 * EPSILON[dtype] * np.abs(expected)
        slack = slack + {"float16": 6e-8, "bfloat16": 1e-38}.get(dtype, 1.2e-38 * count if dtype == "float32" else 0.0)
        most = {"float16": 65504.0, "float32": 3.4028235e38, "bfloat16": 3.39e38}.get(dtype, np.inf)
        wide = got.astype(np.float64)
        open_ = ~np.isfinite(size) | (size + slack >= most)  # infinities: which sums meet first is open
        if template == "winograd" and not all(np.isfinite(array).all() for array in arrays):
            open_ = np.ones_like(open_)  # a tile's transform mixes all of its elements
        bad = ~(np.abs(wide - expected) <= slack) & ~open_
        bad |= open_ & ~np.isfinite(expected) & np.isfinite(wide) & (template != "winograd")
        return bad, wide, expected


def _where(bad: Array, got: Array, expected: Array) -> str:
    if not bad.any():
        return ""
    place = tuple(int(one[0]) for one in np.nonzero(bad))
    return (
        f"{int(bad.sum())} of {bad.size} elements wrong, {list(place)} is {got[place]!r}, expected {expected[place]!r}"
    )


def text(case: KernelCase) -> str:
    """Return a case as Python that verifies its schedule."""
    return "\n".join([
        "import anatune", f"schedule = anatune.Schedule.from_json({case.schedule!r})", "print(schedule.workload)",
        f"# edge inputs: {case.edges}; all of it: python -m bench.fuzz --case kernels:{case.seed}",
        f"print(anatune.verify(schedule, threads={case.threads}, seed={case.seed}))\n",
    ])  # fmt: skip
