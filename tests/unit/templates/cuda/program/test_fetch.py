"""The copies of staged tiles: each element is copied exactly once, in as few copies as the threads allow."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anatune
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.workload.nest import Access, Term
from anatune.templates.cuda.program.fetch import Guard, Side, fetch_width, guards_of, sides_of, walk_of
from anatune.templates.cuda.program.nest import CudaNest

GPU = anatune.hardware("rtx3090")


def access(shape, offsets=None):
    """Return a tensor each of whose dimensions is an axis of its own."""
    terms = tuple((Term(f"a{d}"),) for d in range(len(shape)))
    return Access("A", "float32", tuple(shape), terms, tuple(offsets or [0] * len(shape)))


def row_major(spans, gap=0):
    pitches = [1] * len(spans)
    for d in range(len(spans) - 2, -1, -1):
        pitches[d] = pitches[d + 1] * spans[d + 1] + (gap if d == len(spans) - 2 else 0)
    return pitches


def copied(walk):
    """Return the first position of every copy of every thread, side by side."""
    positions = []
    for thread in range(walk.threads):
        digits = []
        for side in range(len(walk.box)):
            inner = math.prod(walk.box[side + 1 :])
            digits.append(thread // inner % walk.box[side])
        for turns in itertools.product(*map(range, walk.counts)):
            places = [digit + turn * box for digit, turn, box in zip(digits, turns, walk.box, strict=True)]
            if all(place < walk.positions(at) for at, place in enumerate(places)):
                positions.append(tuple(places))
    return positions


@given(st.lists(st.integers(1, 12), min_size=0, max_size=4), st.integers(1, 96), st.sampled_from([1, 2, 4]))
def test_every_element_is_copied_once(spans, threads, width):
    sides = [Side(d, d, span, 1) for d, span in enumerate(spans)]
    if sides:
        sides[-1] = sides[-1]._replace(span=sides[-1].span * width)
    walk = walk_of(sides, width if sides else 1, threads, 4)
    positions = copied(walk)
    assert walk.threads <= threads
    assert len(positions) == len(set(positions)) == math.prod(spans)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.sampled_from([32, 64, 128, 256, 512]))
def test_boxes_of_threads_need_few_more_copies_than_threads_in_a_row(spans, threads):
    walk = walk_of([Side(d, d, span, 1) for d, span in enumerate(spans)], 1, threads, 4)
    assert walk.copies <= 2 * -(-math.prod(spans) // threads)


@pytest.mark.parametrize(
    ("shape", "spans", "gap", "guarded", "joined"),
    [
        ((64, 64, 1, 1), (16, 8, 1, 1), 0, (False,) * 4, [16, 8]),  # weights of a 1x1 convolution
        ((64, 64, 1, 1), (16, 8, 1, 1), 4, (False,) * 4, [16, 8, 1]),  # padding tears dimensions apart
        ((64, 64, 3, 3), (16, 8, 3, 3), 0, (False,) * 4, [16, 72]),
        ((64, 64, 3, 3), (16, 64, 3, 3), 0, (False,) * 4, [16 * 64 * 9]),
        ((64, 64, 3, 3), (16, 8, 1, 3), 0, (False,) * 4, [16, 8, 3]),
        ((1, 8, 14, 14), (1, 4, 14, 14), 0, (False,) * 4, [1, 4 * 196]),
        ((1, 8, 14, 14), (1, 4, 14, 14), 0, (False, False, True, True), [1, 4, 14, 14]),
        ((), (), 0, (), []),
    ],
)
def test_dimensions_without_gaps_are_joined(shape, spans, gap, guarded, joined):
    sides = sides_of(access(shape), spans, row_major(spans, gap), guarded)
    assert [side.span for side in sides] == joined
    assert [side.last for side in sides][-1:] == ([len(shape) - 1] if shape else [])


@pytest.mark.parametrize(
    ("shape", "spans", "steps", "offsets", "requested", "width"),
    [
        ((64, 64), (16, 8), (16, 8), (0, 0), 4, 4),
        ((64, 64), (16, 6), (16, 6), (0, 0), 4, 1),  # rows end within a vector
        ((64, 62), (16, 8), (16, 0), (0, 0), 4, 1),  # rows begin at any place
        ((64, 64), (16, 8), (16, 2), (0, 0), 4, 1),  # tiles do
        ((64, 64), (16, 8), (16, 8), (0, -1), 4, 1),
        ((64, 64, 3), (4, 8, 3), (4, 8, 0), (0, 0, 0), 4, 4),  # 24 elements in a row
        ((64, 64, 3), (4, 2, 3), (4, 2, 0), (0, 0, 0), 2, 2),
        ((64, 64), (16, 8), (16, 8), (0, 0), 3, 1),
        ((64, 64), (16, 8), (16, 8), (0, 0), 8, 1),
        ((), (), (), (), 4, 1),
    ],
)
def test_vectors_are_whole_and_aligned(shape, spans, steps, offsets, requested, width):
    guarded = [offset < 0 for offset in offsets]
    tensor = access(shape, offsets)
    sides = sides_of(tensor, spans, row_major(spans), guarded)
    assert fetch_width(requested, tensor, sides, steps, guarded) == width


def test_only_sides_on_which_positions_can_lie_outside_are_guarded():
    padded = access((10, 10, 10), (-1, 0, 0))
    guards = guards_of(padded, {"a0": 10, "a1": 10, "a2": 12})
    assert guards == (Guard(True, False), Guard(False, False), Guard(False, True))
    workload = anatune.conv2d(1, 4, 9, 9, 8, 3, 3, stride=2)  # 4 x 4 results, which leave nothing over
    covered = dict(workload.extents) | {"x": 5}
    assert [tuple(guard) for guard in guards_of(workload.reads[0], covered)] == [(False, False)] * 3 + [(False, True)]


def test_the_kernel_axes_of_a_1x1_convolution_do_not_keep_it_from_reading_vectors_along_channels():
    workload = anatune.conv2d(1, 64, 14, 14, 64, 1, 1)
    tiles = {"f": (4, 1, 8, 1, 2), "y": (14, 1, 1, 1, 1), "x": (1, 2, 7, 1, 1), "rc": (4, 4, 4)}
    point = anatune.space(workload, GPU).schedule(tiles, 64, {"data": 2, "weight": 4})
    nest = CudaNest(point)
    assert nest.last == "rc"
    assert {tile.access.tensor: tile.fetch for tile in nest.tiles} == {"data": 2, "weight": 4}
    source = cuda_kernel(point).source
    assert "*(float4*)(weight_ptr" in source
    assert "*(float4*)(frag_weight_ptr" in source
