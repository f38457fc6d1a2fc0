"""Programs of many extents as text: which microkernels there are, what has no range."""

import msgspec
import pytest

import anatune
from anatune.errors import SpaceError
from anatune.templates import make_model
from anatune.templates.cpu.program.program import program_of
from anatune.templates.cpu.program.ranged import ranged_program
from anatune.templates.cpu.range_space import most_elements, runs_for_all, schedule_at
from tests.wording import refuses

HW = anatune.hardware("amd_ryzen_7950x")
SPACE = anatune.space(anatune.matmul(6, 48, 24), HW)
SIX = schedule_at(SPACE.schedule({"i": (1, 1, 1, 1, 6)}), "i", 40)


@pytest.mark.parametrize(("least", "sizes"), [(1, {1, 2, 3, 4, 5, 6}), (15, {4, 5, 6}), (30, {5, 6})])
def test_microkernels_are_those_of_the_extents_of_the_range(least, sizes):
    program = ranged_program(SIX, "i", least)
    assert {len(kernel.result.rows) for kernel in program.kernels} == sizes


def test_few_rows_have_several_accumulators_for_each_element():
    schedule = schedule_at(SPACE.schedule({"i": (1, 1, 1, 1, 6), "j": (1, 1, 1, 3, 16), "k": (1, 1, 3, 8)}), "i", 40)
    chains = {len(kernel.result.rows): kernel.chains for kernel in ranged_program(schedule, "i", 1).kernels}
    assert chains[1] > chains[2] > chains[6]


def test_long_extents_are_cut_into_pieces():
    assert "for piece in range(T.truncdiv(extent + 15, 16))" in ranged_program(SIX, "i", 1, piece=16).main
    assert "piece" not in ranged_program(SIX, "i", 1, piece=40).main


@pytest.mark.parametrize(("l2_bytes", "rows", "is_in_order"), [(1024, 6, True), (1024, 12, False), (1 << 20, 6, False)])
def test_sums_are_innermost_where_weights_from_memory_are_read_once(l2_bytes, rows, is_in_order):
    hardware = msgspec.structs.replace(HW, l2=msgspec.structs.replace(HW.l2, size_bytes=l2_bytes))
    space = anatune.space(anatune.matmul(rows, 64, 48), hardware)
    tiles = {"i": (1, 1, 1, rows // 6, 6), "j": (1, 1, 1, 4, 16), "k": (1, 3, 2, 8)}
    schedule = space.schedule(tiles, packed=("B",))
    text = program_of(schedule).main
    assert (text.index("for c_j") < text.index("for t0")) == is_in_order
    ranged = ranged_program(schedule_at(schedule, "i", 40), "i", 1).main
    assert ("if num_calls == 1:" in ranged) == (l2_bytes == 1024)


def test_calls_share_the_prefetches_of_the_next_block_evenly():
    hardware = msgspec.structs.replace(HW, l2=msgspec.structs.replace(HW.l2, size_bytes=1024))
    schedule = anatune.space(anatune.matmul(6, 64, 48), hardware).schedule({"i": (1, 1, 1, 1, 6)}, packed=("B",))
    in_order, shared = ranged_program(schedule_at(schedule, "i", 40), "i", 1).main.split("else:")
    assert "T.truncdiv(c_i * 2, num_calls)" in shared
    assert "T.truncdiv(c_i * 2" not in in_order
    assert ">= 8, 1, 0) * 2048" in in_order  # 8 KB ahead for 8 rows or more, in this call the own elements for fewer


def test_memory_for_packed_rows_grows_with_the_extent():
    schedule = schedule_at(SPACE.schedule({"i": (1, 1, 1, 1, 6)}, packed=("A", "B")), "i", 40)
    program = ranged_program(schedule, "i", 1)
    assert 'A_copy = T.sblock_alloc_buffer((extent * 24,), "float32")' in program.main
    assert program.workspace_bytes == 40 * 24 * 4


def test_what_has_no_range_is_one_line():
    for axis in ("k", "j", "q"):
        with refuses(SpaceError):
            most_elements(SIX, axis)
    space = anatune.space(anatune.matmul(40, 32, 24), HW)
    with refuses(SpaceError):
        most_elements(space.schedule({"i": (1, 1, 2, 1, 20)}), "i")
    batches = anatune.space(anatune.batch_matmul(4, 8, 32, 24), HW)
    with refuses(SpaceError):
        most_elements(batches.schedule({"b": (1, 1, 1, 4, 1)}, packed=("A",)), "b")
    with refuses(SpaceError):
        ranged_program(SIX, "i", 41)


@pytest.mark.parametrize("device", ["epyc_7763", "i7_3770", "xeon_8124m", "graviton3"])
@pytest.mark.parametrize(("columns", "depth"), [(8, 1), (3, 1), (16, 2), (8, 3)])
def test_every_extent_has_a_legal_schedule(device, columns, depth):
    hardware = anatune.hardware(device)
    model = make_model(anatune.matmul(29, columns, depth), hardware, "cpu")
    choices = [model.space.schedule_of(point) for point in model.rank(20).points]
    ranged = [one for one in choices if runs_for_all(one, "i")][:2]
    assert ranged
    for schedule in ranged:
        for extent in (1, 2, 16, 17, 31, 32, 33, 51, 85, 95, 136, 171):
            schedule_at(schedule, "i", extent).check()
