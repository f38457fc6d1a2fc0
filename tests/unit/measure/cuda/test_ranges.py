"""Plans for a range on GPUs: kernels in the emulator at the ends of intervals, the C header, and refusals."""

from unittest import mock

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm")

import anatune
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.triton.ranges import range_kernels
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.workload.ranges import make_ranged_workload
from anatune.errors import DeviceError, MissingDependencyError, RunError
from anatune.export.triton.ranges import write_gpu_range
from anatune.measure.cuda import ranges as gpu_ranges
from anatune.measure.cuda.driver import open_device
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from anatune.measure.emulate.emulator import compiler
from anatune.measure.emulate.triton_interpreter import UNSEEN
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.model.ranges.plan import Interval, RangePlan, RangeProgram
from tests.unit.measure.fake_cuda import FakeCuda, image_of
from tests.wording import refuses

GPU = anatune.hardware("rtx3090")
ENDS = ((1, 7, 0), (8, 20, 1), (21, 21, 0), (22, 45, 1))


def a_plan(gpu=GPU, split=1, extents=range(1, 46), ends=ENDS):
    """Return a plan by hand: two programs, four intervals of 45 rows; the second one splits its reduction."""
    many = make_ranged_workload(anatune.matmul(45, 24, 40), "i", extents)
    inner = [(1, 2, 1, 2), (2, 8, 1, 1)]
    programs = []
    for number, rows in enumerate(inner):
        own = [(first, last) for first, last, owner in ends if owner == number]
        last = own[-1][1]
        blocks = -(-last // int(np.prod(rows)))
        workload = many.at(last)
        schedule = anatune.space(workload, gpu, template="cuda").schedule(
            {"i": (blocks, *rows), "j": (3, 1, 4, 1, 2), "k": (5, 2, 4)}, 64, {"A": 4, "B": 2}
        )
        if number and split > 1:
            schedule = msgspec.structs.replace(schedule, options={"split": split})
        count = sum(first <= extent <= end for first, end in own for extent in extents)
        programs.append(RangeProgram(schedule, own[0][0], last, count))
    intervals = tuple(Interval(first, last, owner, 0.1, 0.1, 1e-6, 2e-6) for first, last, owner in ends)
    return RangePlan(many, gpu, "worst", tuple(programs), intervals, 0.1, 1, 0.1, 0.1, 0.1, 0.1, 0, 2, True)


def no_triton(wanted):
    raise AssertionError("the plan has no program of Triton")


def a_mixed_plan(device="h200", **options):
    """Return a plan by hand for 45 rows of float16: CUDA C up to 7 of them, Triton with two parts of sums above."""
    gpu = anatune.hardware(device)
    many = make_ranged_workload(anatune.matmul(45, 24, 40, dtype="float16"), "i", range(1, 46))
    first = anatune.space(many.at(7), gpu, template="cuda").schedule(
        {"i": (1, 1, 7, 1, 1), "j": (3, 1, 4, 1, 2), "k": (5, 2, 4)}, 64, {"A": 4, "B": 2}
    )
    second = anatune.space(many.at(45), gpu, template="triton").schedule({"m": 16, "n": 16, "k": 16}, **options)
    programs = (RangeProgram(first, 1, 7, 7), RangeProgram(second, 8, 45, 38))
    intervals = tuple(Interval(one.first, one.last, owner, 0.1, 0.1, 1e-6, 2e-6) for owner, one in enumerate(programs))
    return RangePlan(many, gpu, "worst", programs, intervals, 0.1, 1, 0.1, 0.1, 0.1, 0.1, 0, 2, True)


def test_programs_of_triton_are_interpreted_beside_cuda_c():
    pytest.importorskip("triton")
    answer = anatune.verify(a_mixed_plan(split_k=2))
    assert answer.ok, answer.message
    assert answer.max_rel_error <= answer.tolerance
    assert answer.note == UNSEEN


def test_a_program_of_triton_that_is_wrong_is_named(monkeypatch):
    pytest.importorskip("triton")
    plan = a_mixed_plan()
    kernels = range_kernels(plan)
    source = kernels[1].source.replace("M = extent_i", "M = extent_i - 1")
    wrong = [kernels[0], msgspec.structs.replace(kernels[1], source=source)]
    monkeypatch.setattr(gpu_ranges, "range_kernels", lambda plan: wrong)
    answer = anatune.verify(plan)
    assert not answer.ok
    assert answer.message.startswith("kernel 1 at i=8: ")
    assert answer.note == UNSEEN


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
    made = write_gpu_range(plan, "rows", tmp_path, no_triton)
    names = {made.header, made.table, *made.images, *made.sources}
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


@pytest.fixture
def device():
    try:
        compiler()
    except MissingDependencyError as error:
        pytest.skip(str(error))

    def compiled(kernel):
        facts = CompilerFacts(32, kernel.shared_bytes - kernel.dynamic_shared_bytes)
        return Cubin(kernel.name, kernel.arch, image_of(kernel), facts)

    with (
        mock.patch.object(gpu_ranges, "compile_kernel", compiled),
        open_device(backend=CudaBindings(FakeCuda())) as opened,
    ):
        yield opened


def test_a_built_range_is_called_on_arrays_of_any_extent(device):
    plan = a_plan(anatune.hardware("h200"), split=2)
    kernel = gpu_ranges.build(plan, 1, device)
    driver, addresses = device._backend._driver, []
    for extent in (45, 3, 8, 22, 1):
        workload = plan.workload.at(extent)
        inputs = random_inputs(workload, extent)
        want = compute_expected(workload, inputs)
        result = kernel(*inputs.values())
        assert result.shape == (extent, 24)
        assert np.abs(result - want.result).max() <= want.tolerance * want.scale
        addresses.append(set(driver.memory))
    assert driver.calls["cuModuleLoadData"] == 3  # once a function: the second program has two
    assert addresses[0] == addresses[-1]  # memory of the largest extent stays
    del kernel
    assert not driver.memory
    assert not driver.functions


def test_a_built_range_launches_what_triton_compiled(device):
    plan, launched = a_mixed_plan(split_k=2), []

    def compiled(wanted, hardware, workers):
        assert hardware == plan.hardware
        return [Cubin(one.name, "sm_90", b"", CompilerFacts(100), "", 128, 65536, 384) for _, one in wanted]

    def prepare(function, grid, block, arguments):
        launched.append((grid, block, arguments))
        return lambda: None

    with (
        mock.patch.object(gpu_ranges, "compiled_kernels", compiled),
        mock.patch.object(gpu_ranges, "load_functions", lambda device, artifact: artifact.launches),
        mock.patch.object(device, "prepare", prepare),
        mock.patch.object(device, "unload"),
    ):
        kernel = gpu_ranges.build(plan, 1, device)
        for extent in (45, 17):
            inputs = random_inputs(plan.workload.at(extent), extent)
            launched.clear()
            assert kernel(*inputs.values()).shape == (extent, 24)
            first, second = launched
            assert first[:2] == (2 * 2 * -(-extent // 16), 128)
            assert second[:2] == (-(-extent * 24 // 1024), 128)
            *tensors, taken, scratch, null = first[2]
            assert (len(tensors), taken, taken.dtype, null) == (3, extent, np.int32, 0)
            assert scratch.num_bytes == 384 * 2 * 2 * 3  # of the largest extent so far
            assert second[2] == [tensors[2], kernel._buffers["C"], taken, scratch, null]
        del kernel


def test_what_a_built_range_cannot_take_is_one_line(device):
    kernel = gpu_ranges.build(a_plan(anatune.hardware("h200")), 1, device)
    a, b = np.ones((4, 40), np.float32), np.ones((40, 24), np.float32)
    for arrays in (
        (np.ones((46, 40), np.float32), b),
        (np.ones((0, 40), np.float32), b),
        (a, b[:-1]),
        (a.astype(np.float64), b),
        (a[0], b),
        (a,),
        (),
    ):
        with refuses(RunError):
            kernel(*arrays)


def test_extents_between_those_of_a_list():
    ends = ((1, 7, 0), (20, 45, 1))
    plan = a_plan(extents=(1, 7, 20, 41, 45), ends=ends)
    assert plan.telling_extents() == [1, 7, 20, 41, 45]
    assert [plan.least(number) for number in (0, 1)] == [1, 8]
    first, second = range_kernels(plan)
    assert (first.ranged.least, first.ranged.most) == (1, 7)
    assert (second.ranged.least, second.ranged.most) == (8, 45)  # what lies between two intervals is the upper one's
