"""Split reductions: every step of every tile belongs to one block, and every part of a sum has a place of its own."""

import re
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

import anatune
from anatune.emit.script import Script
from anatune.templates.gpu.ranged import Count
from anatune.templates.gpu.split import Split, check_split, splits_of
from anatune.templates.gpu.splitting import SplitReduction

THREADS, ACCUMULATORS = 3, 2
WORDS = {
    "T": SimpleNamespace(
        Select=lambda condition, one, other: one if condition else other,
        truncdiv=lambda a, b: abs(a) // b * (1 if a >= 0 else -1),
        truncmod=lambda a, b: abs(a) % b * (1 if a >= 0 else -1),
        min=min,
    )
}


@st.composite
def splits(draw):
    tiles, steps = draw(st.integers(1, 9)), draw(st.integers(1, 40))
    split = draw(st.sampled_from(splits_of(steps, 12)))
    atomic = split > 1 and draw(st.booleans())
    return tiles, steps, Split(split, draw(st.integers(0, tiles - 1)) if split > 1 else 0, atomic)


def values_of(lines, block, steps):
    """Return what the names that a kernel sets are, for one block and a number of steps."""
    found = {"block": block, "bx": block, "n": steps}
    for line in lines:
        if match := re.fullmatch(r"\s*(\w+): T.int32 = (.*)", line):
            found[match[1]] = eval(match[2], WORDS, found)
    return found


@given(splits(), st.booleans(), st.integers(0, 9))
def test_all_steps_of_all_tiles_are_computed_once(case, varies, fewer):
    """Also where the number of steps is known at run time only."""
    tiles, most, split = case
    count, steps = Count.of(most), most
    if varies:
        split = split._replace(whole=0)
        count, steps = Count("n", split.split, most), max(split.split, most - fewer)
    workload = anatune.matmul(64, 64, 64)
    check_split(workload, {"split": split.split, "whole": split.whole, "atomic": int(split.atomic)}, tiles, most)
    reduction = SplitReduction(
        SimpleNamespace(
            split=split,
            workload=workload,
            num_tiles=tiles,
            num_blocks=split.num_blocks(tiles),
            steps=count,
            num_threads=THREADS,
            num_keepers=THREADS,
            num_accumulators=ACCUMULATORS,
            accumulator="float32",
            result_bytes=0,
            ranged=None,
            growth=None,
            shape=lambda access: access.shape,
        )
    )
    text, parts, bodies = Script(), [], []

    def principal(part):
        parts.append(part)
        reduction.store(text, "unroll", lambda: text.line("store"), lambda: text.line("add"))
        bodies.append(list(text.lines))

    reduction.write(text, "kernel", principal, lambda: bodies.append(text.lines[len(bodies[0]) :]))
    (part,), (lines, *behind) = parts, bodies
    done, places = {}, set()
    for block in range(split.num_blocks(tiles)):
        values = values_of(lines, block, steps)
        first = eval(part.first, WORDS, values) if part.first else 0
        turns = eval(part.turns, WORDS, values)
        assert part.least <= turns <= part.most
        for step in range(first, first + turns):
            done[values["bx"], step] = done.get((values["bx"], step), 0) + 1
        if reduction.workspace is not None and block >= split.whole:
            (place,) = (match[1] for line in lines if (match := re.search(r"workspace\[(.*)\] = acc\[r\]", line)))
            for r in range(ACCUMULATORS):
                places |= {eval(place, {**values, "r": r, "tx": tx}) for tx in range(THREADS)}
    assert done == {(tile, step): 1 for tile in range(tiles) for step in range(steps)}
    size = 0 if reduction.workspace is None else reduction.workspace.shape[0]
    assert places == set(range(size))
    assert size == (0 if split.atomic else split.num_parts(tiles) * ACCUMULATORS * THREADS)
    for body, launch in zip(behind, reduction.after, strict=True):
        assert [values_of(body, block, steps)["bx"] for block in range(launch.grid)] == list(range(split.whole, tiles))
