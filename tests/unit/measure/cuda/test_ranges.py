"""Plans for a range on GPUs: kernels in the emulator at the ends of intervals, the C header, and refusals."""

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.workload.ranges import ranged
from anatune.errors import DeviceError
from anatune.model.ranges.plan import Interval, RangePlan, RangeProgram

pytest.importorskip("tvm")
from anatune.codegen.cuda.export.ranges import write_cuda_range

GPU = anatune.hardware("rtx3090")
ENDS = ((1, 7, 0), (8, 20, 1), (21, 21, 0), (22, 45, 1))


def a_plan(**tiles):
    """Return a plan by hand: two programs, four intervals of 45 rows."""
    many = ranged(anatune.matmul(45, 24, 40), "i", range(1, 46))
    inner = [(1, 2, 1, 2), (2, 8, 1, 1)]
    programs = []
    for number, rows in enumerate(inner):
        own = [(first, last) for first, last, owner in ENDS if owner == number]
        last = own[-1][1]
        blocks = -(-last // int(np.prod(rows)))
        workload = many.at(last)
        schedule = anatune.space(workload, GPU, template="cuda").schedule(
            {"i": (blocks, *rows), "j": (3, 1, 4, 1, 2), "k": (5, 2, 4)}, 64, {"A": 4, "B": 2}
        )
        count = sum(end - first + 1 for first, end in own)
        programs.append(RangeProgram(schedule, own[0][0], last, count))
    intervals = tuple(Interval(first, last, owner, 0.1, 0.1, 1e-6, 2e-6) for first, last, owner in ENDS)
    return RangePlan(many, GPU, "worst", tuple(programs), intervals, 0.1, 1, 0.1, 0.1, 0.1, 0.1, 0, 2, True)


def test_kernels_are_right_where_their_intervals_begin_and_end():
    answer = anatune.verify(a_plan())
    assert answer.ok, answer.message
    assert answer.max_rel_error <= answer.tolerance


def test_a_program_that_serves_extents_it_is_not_for_is_found():
    plan = a_plan()
    first, *rest = plan.programs
    wrong = msgspec.structs.replace(first, last=first.last - 1)
    with pytest.raises(anatune.AnatuneError):
        anatune.verify(msgspec.structs.replace(plan, programs=(wrong, *rest)))


def test_the_export_holds_a_cubin_of_each_program_and_the_table(tmp_path):
    plan = a_plan()
    made = write_cuda_range(plan, "rows", tmp_path)
    names = {made.header, made.table, *made.cubins, *made.sources}
    assert names == {"rows.h", "rows_dispatch.json", "rows_0.cu", "rows_0.cubin", "rows_1.cu", "rows_1.cubin"}
    assert all((tmp_path / name).stat().st_size for name in names)
    table = msgspec.json.decode((tmp_path / "rows_dispatch.json").read_bytes())
    assert [(one["first"], one["last"], one["program"]) for one in table["intervals"]] == list(ENDS)
    header = (tmp_path / "rows.h").read_text()
    assert "static const int last[4] = {7, 20, 21, 45};" in header
    assert "static const unsigned char program[4] = {0, 1, 0, 1};" in header
    assert "3 * ((extent + 3) / 4)" in header
    assert "3 * ((extent + 15) / 16)" in header


def test_without_a_gpu_a_range_cannot_be_built_here():
    with pytest.raises(DeviceError):
        anatune.build(a_plan())
