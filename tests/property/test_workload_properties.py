"""Access maps, footprints, byte counts, text and JSON hold for random workloads."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from anatune.core.workload import operators as ops
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.core.workload.text import parse_workload, workload_to_text
from anatune.errors import AnatuneError
from tests.naive_workload import position, touched

small = st.integers(1, 4)
dtypes = st.sampled_from(["float32", "float16", "bfloat16", "int8"])
layouts = st.sampled_from(["NCHW", "NHWC"])
epilogues = st.permutations(["bias", "add", "relu"]).flatmap(
    lambda steps: st.integers(0, 3).map(lambda count: tuple(steps[:count]))
)


@st.composite
def products(draw: st.DrawFn) -> Workload:
    options = {
        "dtype": draw(dtypes),
        "transpose_a": draw(st.booleans()),
        "transpose_b": draw(st.booleans()),
        "epilogue": draw(epilogues),
    }
    if draw(st.booleans()):
        return ops.matmul(draw(small), draw(small), draw(small), **options)
    return ops.batch_matmul(draw(small), draw(small), draw(small), draw(small), **options)


def windows(draw: st.DrawFn, rank: int) -> tuple[list[int], list[int], dict[str, tuple[int, ...]]]:
    """Sizes, kernel, and options of windows that fit."""
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    spans = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
    before = [draw(st.integers(0, span - 1)) for span in spans]
    after = [draw(st.integers(0, span - 1)) for span in spans]
    sizes = [
        draw(st.integers(max(span - low - high, step), 7))
        for span, low, high, step in zip(spans, before, after, dilation, strict=True)
    ]
    stride = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    return sizes, kernel, {"stride": stride, "padding": (*before, *after), "dilation": tuple(dilation)}


@st.composite
def convolutions(draw: st.DrawFn) -> Workload:
    rank = draw(st.integers(1, 3)) if draw(st.booleans()) else 2
    sizes, kernel, options = windows(draw, rank)
    common = {"layout": draw(layouts), "dtype": draw(dtypes), "epilogue": draw(epilogues)}
    batch, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    if rank == 2 and draw(st.booleans()):
        multiplier = draw(st.integers(1, 2))
        return ops.depthwise_conv2d(batch, draw(st.integers(1, 3)), *sizes, *kernel, multiplier, **options, **common)
    channels, filters = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    build = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}[rank]
    return build(batch, channels, *sizes, filters, *kernel, groups=groups, **options, **common)


@st.composite
def poolings(draw: st.DrawFn) -> Workload:
    rank = draw(st.integers(1, 3))
    sizes, kernel, options = windows(draw, rank)
    build = ops.CONSTRUCTORS[f"{draw(st.sampled_from(['max', 'avg']))}_pool{rank}d"]
    return build(draw(small), draw(small), *sizes, *kernel, layout=draw(layouts), dtype=draw(dtypes), **options)


@st.composite
def others(draw: st.DrawFn) -> Workload:
    shape = draw(st.lists(small, min_size=1, max_size=4))
    kind = draw(st.integers(0, 2))
    if kind == 0:
        axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
        return ops.reduction(shape, sorted(axes), draw(st.sampled_from(["sum", "max", "mean"])), draw(dtypes))
    if kind == 1:
        op = draw(st.sampled_from(["relu", "copy", "add", "multiply", "maximum"]))
        return ops.elementwise(shape, op, draw(dtypes))
    words = draw(
        st.lists(st.sets(st.sampled_from("abCd"), min_size=1).map(sorted).map("".join), min_size=1, max_size=3)
    )
    letters = sorted(set("".join(words)))
    result = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
    extents = {letter: draw(small) for letter in letters}
    return ops.einsum(f"{','.join(words)}->{''.join(result)}", extents, draw(dtypes))


workloads = st.one_of(products(), convolutions(), poolings(), others())


@given(workloads, st.data())
@settings(deadline=None)
def test_footprint_is_the_bounding_box_of_what_a_tile_touches(workload: Workload, data: st.DataObject) -> None:
    tile = {axis.name: data.draw(st.integers(1, axis.extent)) for axis in workload.axes if data.draw(st.booleans())}
    ranges = [range(tile.get(axis.name, 1)) for axis in workload.axes]
    names = [axis.name for axis in workload.axes]
    for access in (*workload.reads, workload.write):
        places = [position(access, dict(zip(names, values, strict=True))) for values in itertools.product(*ranges)]
        box = 1
        for indices in zip(*places, strict=True):
            box *= max(indices) - min(indices) + 1
        assert access.footprint(tile) == box


@given(workloads)
@settings(deadline=None)
def test_compulsory_bytes_count_every_touched_element_once(workload: Workload) -> None:
    total = 0
    for access in (*workload.reads, workload.write, *workload.epilogue_reads):
        count = touched(workload, access)
        assert access.touched_elements(workload.extents) == count <= access.num_elements
        total += count * DTYPE_BYTES[access.dtype]
    assert workload.compulsory_bytes == total
    assert touched(workload, workload.write) == workload.write.num_elements


@given(workloads)
@settings(deadline=None)
def test_attributes_text_and_json_give_the_workload_back(workload: Workload) -> None:
    assert ops.CONSTRUCTORS[workload.operator](**workload.attribute) == workload
    assert parse_workload(workload_to_text(workload)) == workload
    assert Workload.from_json(workload.to_json()) == workload
    assert workload.flop == workload.num_points * workload.flop_per_point


@given(
    st.lists(st.text("0123456789xabC:-=,>. ", max_size=12), max_size=3),
    st.sampled_from(["matmul", "conv2d", "einsum", ""]),
)
def test_any_text_is_a_workload_or_one_line(words: list[str], operator: str) -> None:
    message = ""
    try:
        parse_workload([operator, *words])
    except AnatuneError as error:
        message = str(error)
    assert "\n" not in message
