"""Kernels whose reductions are split: they are right, and faults put into them are found."""

import re

import msgspec
import pytest

pytest.importorskip("tvm")
import anatune
from anatune.codegen.cuda.artifact import GpuArtifact
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.workload.operators import avg_pool2d, max_pool2d, reduction
from anatune.errors import BuildError, MissingDependencyError, RunError
from anatune.measure.emulate.emulator import compiler
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.templates.cuda.program.nest import program_key
from anatune.templates.gpu.kernel import CudaKernel
from anatune.templates.gpu.splitting import StepRange
from tests.split_schedules import split_schedule
from tests.wording import refuses

try:
    compiler()
except MissingDependencyError as error:
    pytest.skip(str(error), allow_module_level=True)

MATMUL = anatune.matmul(48, 40, 84)
TILES = {"i": (3, 1, 8, 1, 2), "j": (2, 1, 10, 1, 2), "k": (7, 3, 4)}
EDGES = {"i": (3, 1, 9, 1, 2), "j": (3, 1, 8, 1, 2), "k": (7, 1, 13)}
"""Return a split schedule of 48x40x84 whose tiles pass all ends."""
ATOMIC = {"split": 3, "atomic": 1}


def schedule(options, workload=MATMUL, template="cuda", tiles=TILES):
    """Return a schedule of 6 tiles and 7 steps."""
    plain = anatune.space(workload, "a100", template=template).sample(1)[0]
    return msgspec.structs.replace(plain, tiles=tiles, unroll=16, vector={}, options=options).check()


CASES = {
    "parts of 3, 3 and 1 steps": schedule({"split": 3}),
    "a step a part": schedule({"split": 7, "whole": 5}),
    "pipelined through registers": schedule({"split": 2, "whole": 1, "stages": 2}, template="pipelined"),
    "a part shorter than the pipeline": schedule(
        {"split": 3, "stages": 3, "pad": 4}, template="pipelined", tiles={**TILES, "k": (7, 1, 12)}
    ),
    "whole tiles in a pipeline": schedule({"split": 3, "whole": 3, "stages": 3}, template="pipelined"),
    "atomic": schedule(ATOMIC),
    "atomic with whole tiles": schedule({**ATOMIC, "whole": 4, "stages": 3}, template="pipelined"),
    "guarded": schedule({"split": 4, "whole": 5}, tiles=EDGES),
    "guarded, atomic, pipelined": schedule({"split": 2, "atomic": 1, "stages": 2}, template="pipelined", tiles=EDGES),
    "epilogue": schedule({"split": 2}, anatune.matmul(48, 40, 84, epilogue=("bias", "add", "relu"))),
    "float16": schedule({"split": 2, "whole": 1}, anatune.matmul(48, 40, 84, dtype="float16")),
    "bfloat16": schedule({"split": 3}, anatune.matmul(48, 40, 84, dtype="bfloat16", epilogue=("bias",))),
    "int8": schedule({"split": 3}, anatune.matmul(48, 40, 84, dtype="int8")),
    "int8 atomic": schedule({**ATOMIC, "whole": 1}, anatune.matmul(48, 40, 84, dtype="int8")),
    "max": split_schedule("a100", "cuda", max_pool2d(1, 4, 18, 18, 6, 3), {"split": 2, "whole": 1}),
    "average": split_schedule("a100", "pipelined", avg_pool2d(1, 4, 18, 18, 6, 3), {"split": 3}),
    "sum": split_schedule("a100", "cuda", reduction((32, 96), (1,)), {"split": 5}),
    "convolution": split_schedule(
        "a100", "cuda", anatune.conv2d(1, 12, 9, 9, 16, 3, 3, padding=1, epilogue=("relu",)), {"split": 4, "whole": 1}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_split_reductions_are_right(name):
    answer = anatune.verify(CASES[name])
    assert answer.message == ""
    assert answer.ok


def test_what_is_launched():
    tiles, steps, threads, accumulators = 6, 7, 80, 4
    assert cuda_kernel(schedule({"split": 1})).source == cuda_kernel(schedule({})).source
    kernel = cuda_kernel(schedule({"split": 3, "whole": 2}))
    assert (kernel.grid, kernel.block) == (2 + (tiles - 2) * 3, threads)
    (behind,) = kernel.after
    assert kernel.before == ()
    assert (behind.grid, behind.block, behind.dynamic_shared_bytes) == (tiles - 2, threads, 0)
    assert kernel.workspace.shape == ((tiles - 2) * 3 * accumulators * threads,)
    assert kernel.workspace.dtype == "float32"
    assert kernel.workspace in kernel.parameters
    assert {one.tensor for one in behind.parameters} == {"C", "workspace"}
    assert set(kernel.tensors) == {"A", "B", "C"}
    assert [one.name for one in kernel.launches] == ["main_kernel", "main_kernel_1"]
    atomic = cuda_kernel(schedule(ATOMIC))
    assert (atomic.workspace, atomic.after, atomic.grid) == (None, (), tiles * 3)
    assert [one.name for one in atomic.launches] == ["main_kernel", "main_kernel_1"]
    assert atomic.name == "main_kernel_1"
    assert atomic.before[0].grid * atomic.before[0].block >= 48 * 40
    assert steps == TILES["k"][0]


def test_kernels_and_artifacts_of_before_are_read():
    kernel = cuda_kernel(schedule({"split": 2}))
    assert msgspec.json.decode(msgspec.json.encode(kernel), type=CudaKernel) == kernel
    former = msgspec.to_builtins(cuda_kernel(schedule({})))
    artifact = {**former, "image": "x.cubin", "image_sha256": "0", "facts": {"registers": 40}}
    artifact.pop("source")
    for fields, kind in ((former, CudaKernel), (artifact, GpuArtifact)):
        for name in ("before", "after", "workspace"):
            fields.pop(name, None)
        read = msgspec.convert(fields, kind)
        assert (read.before, read.after, read.workspace) == ((), (), None)
        assert read.launches == (read.principal,)


def test_programs_are_told_apart():
    options = [{}, {"split": 2}, {"split": 3}, {"split": 2, "whole": 1}, {"split": 2, "atomic": 1}]
    assert len({program_key(schedule(one)) for one in options}) == len(options)
    assert program_key(schedule({"split": 1})) == program_key(schedule({}))


def test_a_workspace_that_32_bits_do_not_address():
    large = anatune.matmul(16384, 16384, 84)
    tiles = {"i": (2048, 1, 4, 1, 2), "j": (2048, 1, 4, 1, 2), "k": (7 * 12, 1, 1)}
    with refuses(BuildError):
        cuda_kernel(schedule({"split": 12}, large, tiles=tiles))


def test_conditions_are_written_where_blocks_differ():
    same, other = StepRange("first", "3", 3, 3), StepRange("first", "steps", 1, 3)
    assert [same.condition_of(number) for number in (2, 3)] == ["", None]
    assert [other.condition_of(number) for number in (0, 2, 3)] == ["", "if 2 < steps:", None]
    assert [same.condition_before_last(count) for count in (1, 3)] == ["if step < 2:", "if False:"]
    assert other.condition_before_last(1) == "if step < steps - 1:"
    assert (same.step("0"), StepRange("", "7", 7, 7).step("0")) == ("(first)", "0")


# ---- faults


def answer_of(kernel, workload=MATMUL):
    """Return what the emulator complains about, "" if nothing."""
    inputs = random_inputs(workload, 1)
    try:
        return check_kernel(workload, kernel, inputs, compute_expected(workload, inputs)).message
    except RunError as error:
        return str(error)


def changed(kernel, pattern, replacement, *, launch=0, count=1):
    """Return a kernel with another text in one of its functions."""
    start = kernel.source.rindex(f" {kernel.launches[launch].name}(")
    edited, times = re.subn(pattern, replacement, kernel.source[start:], count=count)
    assert times, pattern
    return msgspec.structs.replace(kernel, source=kernel.source[:start] + edited)


def faults():
    split, atomic = cuda_kernel(schedule({"split": 3, "whole": 2})), cuda_kernel(schedule(ATOMIC))
    (behind,), replace = split.after, msgspec.structs.replace
    wrong, unwritten = "elements are wrong", "nothing has written yet"
    yield "nothing zeroes the result", replace(atomic, before=()), wrong
    yield "half of the result is zeroed", replace(atomic, before=(replace(atomic.before[0], grid=4),)), wrong
    yield (
        "no atomics",
        changed(atomic, r"atomicAdd\(\(&\((C_ptr\[.*\])\)\), (.*)\);", r"\1 = \1 + \2;", launch=1),
        unwritten,
    )
    yield "sums come before parts", replace(split, before=(behind,), after=()), unwritten
    yield "sums are left out", replace(split, after=()), wrong
    yield "a sum is left out", replace(split, after=(replace(behind, grid=behind.grid - 1),)), wrong
    yield "a part is not computed", replace(split, grid=split.grid - 1), wrong
    yield "a part is not added", changed(split, r"p < 2", "p < 1", launch=1), wrong
    yield "a part is added twice", changed(split, r"p \* 320", "(p & 0) * 320", launch=1), wrong
    yield (
        "parts share a place",
        changed(split, r"\(\(int\)blockIdx\.x\) \* 320", "(((int)blockIdx.x) / 2 * 2) * 320"),
        "race",
    )
    yield (
        "threads share a place",
        changed(split, r"\(int\)threadIdx\.x\)\) - 640", "(int)threadIdx.x) / 2) - 640"),
        "race",
    )
    yield "a step twice", changed(split, r"% 3\) \* 3", "% 3) * 2"), wrong
    yield (
        "a step behind the end",
        changed(split, r"7(\W*) - (\W*\(uint\)\w+_ptr\[0\])", r"8\1 - \2"),
        "elements are wrong|at byte",
    )
    yield (
        "a tile too far",
        changed(split, r"blockIdx\.x\) \+ 2", "blockIdx.x) + 3", launch=1),
        "at byte|outside|across",
    )


FAULTS = {name: (kernel, words) for name, kernel, words in faults()}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    kernel, words = FAULTS[name]
    assert re.search(words, answer_of(kernel)), answer_of(kernel)


def test_without_faults_there_is_no_complaint():
    assert answer_of(cuda_kernel(schedule({"split": 3, "whole": 2}))) == answer_of(cuda_kernel(schedule(ATOMIC))) == ""
