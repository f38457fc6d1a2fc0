import gc
import os
import re
import sys

import numpy as np
import pytest

pytest.importorskip("tvm")

import anatune
from anatune.errors import DeviceError, MissingDependencyError, RunError, SpaceError
from anatune.measure.cpu.blocks import ArgumentBlock, tensor_of
from anatune.measure.cpu.cold import check_cold, cold_bytes, level_of
from anatune.measure.cpu.kernel import Kernel, KernelLibrary, PreparedCall
from anatune.measure.run.correctness import array_dtype, compute_expected, random_inputs, same_bytes
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.settings import TuningSettings
from anatune.tuning.target import target_of
from tests.unit.measure.stand_ins import WORKLOAD, compile_matmul
from tests.wording import refuses


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return compile_matmul(WORKLOAD, tmp_path_factory.mktemp("good"))


@pytest.fixture
def kernel(artifact):
    return Kernel(WORKLOAD, artifact)


def operands(seed=0):
    inputs = random_inputs(WORKLOAD, seed)
    return inputs["A"], inputs["B"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int32"])
@pytest.mark.parametrize("shape", [(), (3,), (5, 7)])
@pytest.mark.parametrize("guarded", [False, True])
def test_blocks_are_aligned_and_shared_with_tvm(dtype, shape, guarded):
    block = ArgumentBlock(dtype, shape, guarded=guarded)
    assert block.array.ctypes.data % 64 == 0
    assert block.array.dtype == array_dtype(dtype)
    block.array[...] = 3
    tensor = block.tensor
    assert (tuple(tensor.shape), str(tensor.dtype)) == (shape, dtype)
    assert same_bytes(tensor.numpy(), block.array)
    block.array[...] = 5
    assert same_bytes(tensor.numpy(), block.array)
    assert block.intact
    if guarded:
        block._raw[block._start + block.bytes.size] = 0
        assert not block.intact


def test_unaligned_strided_and_read_only_arrays_are_copied():
    whole = ArgumentBlock("float32", (8, 9)).array
    whole[...] = np.arange(72).reshape(8, 9)
    assert tensor_of(whole).numpy().tolist() == whole.tolist()
    for array in (whole[:, 1:], whole[1:], whole.T):
        assert tensor_of(array).numpy().tolist() == array.tolist()
    frozen = whole.copy()
    frozen.flags.writeable = False
    assert tensor_of(frozen).numpy().tolist() == frozen.tolist()


def test_a_kernel_computes_on_arrays_in_the_workloads_layouts(kernel):
    a, b = operands()
    assert kernel.operands == ("A", "B")
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kernel(np.asfortranarray(a), b[::-1]), a @ b[::-1], rtol=1e-5, atol=1e-5)


def test_results_of_two_calls_are_two_arrays(kernel):
    a, b = operands()
    first = kernel(a, b)
    kept = first.copy()
    kernel(-a, b)
    np.testing.assert_array_equal(first, kept)


def test_constants_are_packed_again_only_when_their_contents_change(kernel):
    a, b = operands()
    packs = []
    pack = kernel._library.packers["B"]
    kernel._library.packers["B"] = lambda *arguments: (packs.append(1), pack(*arguments))
    kernel(a, b)
    kernel(-a, b)
    kernel(a, b.copy())
    assert len(packs) == 1
    b[0, 0] += 1  # the same object with other contents
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-5, atol=1e-5)
    assert len(packs) == 2
    b.flags.writeable = False
    kernel(a, b)
    kernel(a, b)
    assert len(packs) == 2


def test_other_arrays_are_refused_in_one_line(kernel):
    a, b = operands()
    with refuses(RunError):
        kernel(a)
    with refuses(RunError):
        kernel(a, b.T)
    with refuses(RunError):
        kernel(a.astype(np.float64), b)


def test_random_calls_run_on_prepared_operands(kernel):
    call = kernel.random_call()
    call()
    call()
    inputs = random_inputs(WORKLOAD)
    prepared = kernel.prepare(inputs)
    prepared.call()
    np.testing.assert_allclose(prepared.result.array, inputs["A"] @ inputs["B"], rtol=1e-5, atol=1e-5)


def test_calls_take_copies_of_the_constants_in_turn(artifact):
    inputs, seen = random_inputs(WORKLOAD), []
    library = KernelLibrary(artifact)
    main, library.main = (
        library.main,
        lambda *given: (seen.append([np.from_dlpack(one).ctypes.data for one in given]), main(*given)),
    )
    size = -(-inputs["B"].nbytes // 64) * 64
    memory = ArgumentBlock("uint8", (3 * size + 17,))
    prepared = PreparedCall(artifact, library, inputs, guarded=True, constants=("B",), cold=memory)
    want = compute_expected(WORKLOAD, inputs)
    for _ in range(8):
        prepared.result.bytes[:] = 255
        prepared.call()
        np.testing.assert_allclose(prepared.result.array, inputs["A"] @ inputs["B"], rtol=1e-5, atol=1e-5)
    places = [given[1] for given in seen]
    assert places[:4] == places[4:]
    assert len(set(places)) == 4  # the operand itself, then three copies
    assert [place - places[1] for place in places[1:4]] == [0, size, 2 * size]
    assert len({given[0] for given in seen}) == 1
    assert prepared.check(WORKLOAD, want).ok


def test_constants_larger_than_the_memory_stay_where_they_are(artifact):
    inputs = random_inputs(WORKLOAD)
    memory = ArgumentBlock("uint8", (64,))
    memory.bytes[:] = 7
    prepared = PreparedCall(artifact, KernelLibrary(artifact), inputs, constants=("B",), cold=memory)
    prepared.call()
    np.testing.assert_allclose(prepared.result.array, inputs["A"] @ inputs["B"], rtol=1e-5, atol=1e-5)
    assert (memory.bytes == 7).all()


def test_levels_that_constants_come_from(host):
    spec = anatune.hardware("xeon_gold_6230r")
    assert cold_bytes(spec, None) == 0
    assert spec.l2.size_bytes < cold_bytes(spec, "l3") < spec.l3.size_bytes < cold_bytes(spec, "dram")
    assert [level_of(size, spec) for size in (1 << 20, 1 << 21, 1 << 30)] == [None, "l3", "dram"]
    with refuses(SpaceError):
        check_cold("l2", spec)
    with refuses(SpaceError):
        target_of(WORKLOAD, anatune.hardware("rtx3090"), TuningSettings(cold="dram"), LocalPlace())


def test_the_folder_goes_with_the_kernel(tmp_path):
    folder = tmp_path / "build"
    folder.mkdir()
    kernel = Kernel(WORKLOAD, compile_matmul(WORKLOAD, folder), folder)
    assert folder.exists()
    kernel(*operands())
    del kernel
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("", ""),
        ("wrong result", r"C\[0, 1\] is 3, expected"),
        ("nothing written", "never written"),
        ("changes an operand", "changed its operand A"),
        ("changes a constant", r"changed its operand B \(packed\)"),
        ("writes outside", "wrote outside of C"),
    ],
)
def test_a_check_finds_what_a_kernel_does_wrong(fault, message, tmp_path):
    inputs = random_inputs(WORKLOAD)
    kernel = Kernel(WORKLOAD, compile_matmul(WORKLOAD, tmp_path, fault))
    answer = kernel.prepare(inputs, guarded=True).check(WORKLOAD, compute_expected(WORKLOAD, inputs))
    assert answer.ok == (fault == "")
    assert re.search(message, answer.message)


def test_files_that_are_no_library_are_one_error(artifact, tmp_path):
    import msgspec

    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    for path in (broken, tmp_path / "missing.so"):
        with refuses(RunError):
            Kernel(WORKLOAD, msgspec.structs.replace(artifact, library=str(path)))


@pytest.fixture(scope="module")
def host():
    try:
        return anatune.hardware("host")
    except DeviceError as error:
        pytest.skip(str(error))


def test_the_plans_first_choice_is_built_verified_and_inspected(host, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    workload = anatune.matmul(24, 48, 20, epilogue=("bias", "relu"))
    best = anatune.plan(workload, host, 1).best
    answer = anatune.verify(best)
    assert answer.ok, answer.message
    assert answer.max_rel_error <= answer.tolerance
    kernel = anatune.build(best)
    a, b, bias = random_inputs(workload).values()
    np.testing.assert_allclose(kernel(a, b, bias), np.maximum(a @ b + bias, 0), rtol=1e-4, atol=1e-5)
    assert anatune.inspect(best)["flop"] == workload.flop
    del kernel
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_arguments_of_the_library_calls_are_checked(host):
    for call in (anatune.build, anatune.verify, anatune.inspect):
        with refuses(SpaceError):
            call("matmul")
    best = anatune.plan(anatune.matmul(8, 16, 8), host, 1).best
    with refuses(SpaceError):
        anatune.build(best, threads=0)


def test_without_tvm_the_error_names_the_extra(kernel, monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm", None)
    with refuses(MissingDependencyError):
        Kernel(WORKLOAD, kernel.artifact)
