"""Products of every dtype, layout and thin shape are right with each of the instructions that may sum them.

Whatever is thin decides which operand is the vectors' and which the broadcast one, the layouts which of them is packed,
the dtypes which instruction multiplies them, and as what it takes their signs.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import msgspec
import pytest

import anatune
from anatune.core.hardware.cpu_groups import DotInstruction
from anatune.core.hardware.dot import dot_features
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.cpu.features import lacking_features
from anatune.templates.cpu.dot import half_sums_apply

pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen import compat
from anatune.codegen.cpu import lower as lowering
from anatune.core.accuracy import error_of
from anatune.measure.cpu.kernel import check_instructions
from anatune.measure.run.correctness import compare, compute_expected, random_inputs
from tests.instructions import without_rounding
from tests.machine import host
from tests.unit.codegen.cpu.test_lower import run

HOST = host()
ALL = ("float32", "float16", "bfloat16", "int8", "uint8xint8")
CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "host": ("host", (), ALL),
    "avx512": ("xeon_8124m", (), ("bfloat16", "int8", "uint8xint8")),
    "avx512_vnni": ("xeon_8124m", ("vpdpbusd",), ("int8", "uint8xint8")),
    "avx512_bf16": ("xeon_8124m", ("vdpbf16ps",), ("bfloat16",)),
    "avx512_fp16": ("xeon_8124m", ("vfmaddph",), ("float16",)),
    "avx2": ("ryzen_3700x", (), ALL),
    "avx_vnni": ("ryzen_3700x", ("vpdpbusd",), ("int8", "uint8xint8")),
    "avx_vnni_int8": ("ryzen_3700x", ("vpdpbssd",), ("int8",)),
}
"""Name -> a CPU, instructions that sum products of neighbours, dtypes."""
SHAPES = ((20, 36, 44), (1, 36, 44), (5, 36, 44), (36, 1, 44), (36, 5, 44), (5, 7, 44), (20, 36, 3), (20, 36, 1))
"""(M, N, K): whole vectors of any CPU, fewer than one, one, and fewer products than a group has."""
EINSUMS = ("ki,k->i", "ik,k->i", "k,kj->j", "k,jk->j", "ki,kj->ji", "ik,jk->ji", "bki,bk->bi", "bki,bkj->ijb")
CONVOLUTIONS = ((3, 20, 1, 1), (20, 3, 1, 1), (3, 20, 3, 1), (20, 3, 3, 1), (6, 20, 1, 2))
"""Filters, width, taps an axis, groups."""
EXTENTS = {"b": 2, "i": 36, "j": 5, "k": 44}


class Device(NamedTuple):
    """A CPU, the dtype of operands, the template of schedules."""

    hardware: CpuSpec
    dtype: str
    template: str
    number: int


DEVICES = [(name, dtype) for name, (_, _, dtypes) in CASES.items() for dtype in dtypes]


def every_fourth(cases, *numbers):
    """Return a quarter of the cases, another one for other numbers: the devices meet all of them together."""
    return cases[sum(numbers) % 4 :: 4]


def cpu(name: str) -> CpuSpec:
    """Return a CPU with the vectors and instructions of a case, and everything else as the present machine has it."""
    base, own, _ = CASES[name]
    if base == "host":
        return HOST
    known = DotInstruction(source="test", rate=2.0, latency_cycles=5.0)
    spec = msgspec.structs.replace(anatune.hardware(base), arch=HOST.arch, hidden_features=HOST.hidden_features)
    return msgspec.structs.replace(spec, **dict.fromkeys(own, known))


def stand_in(name: str, bits: int) -> str:
    """Return a function in LLVM IR that does what an instruction on vectors of so many bits does."""
    lanes = bits // 32
    group, element, wide = (2, "bfloat", "float") if name == "vdpbf16ps" else (4, "i8", "i32")
    extend = {"vdpbf16ps": ("fpext", "fpext"), "vpdpbusd": ("zext", "sext"), "vpdpbssd": ("sext", "sext")}[name]
    prefix = "f" if wide == "float" else ""
    few, many = f"<{lanes} x {wide}>", f"<{lanes * group} x {wide}>"
    narrow = f"<{lanes * group} x {element}>"
    lines = [f"define internal {few} @own_{name}({few} %s0, {narrow} %a, {narrow} %b) {{"]
    lines += [f"  %{new} = {how} {narrow} %{old} to {many}" for new, how, old in zip("xy", extend, "ab", strict=True)]
    lines.append(f"  %p = {prefix}mul {many} %x, %y")
    for place in range(group):
        order = ", ".join(f"i32 {lane * group + place}" for lane in range(lanes))
        lines.append(f"  %p{place} = shufflevector {many} %p, {many} poison, <{lanes} x i32> <{order}>")
        lines.append(f"  %s{place + 1} = {prefix}add {few} %s{place}, %p{place}")
    return "\n".join([*lines, f"  ret {few} %s{group}", "}"])


def without(llvm: str, hardware: CpuSpec) -> str:
    """Return a module with functions in the place of the instructions of a CPU that sum products of neighbours."""
    bits, llvm = hardware.compute.simd_bits, without_rounding(llvm)
    for name in ("vdpbf16ps", "vpdpbusd", "vpdpbssd"):
        prefix = {"vdpbf16ps": "avx512bf16.dpbf16ps", "vpdpbusd": "avx512.vpdpbusd", "vpdpbssd": "avx2.vpdpbssd"}[name]
        intrinsic = f"@llvm.x86.{prefix}.{bits}"
        if intrinsic in llvm:
            lines = [line for line in llvm.splitlines() if not (line.startswith("declare") and intrinsic in line)]
            llvm = "\n".join([*lines, stand_in(name, bits), ""]).replace(intrinsic, f"@own_{name}")
    return llvm


@pytest.fixture(params=DEVICES, ids="-".join)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return a CPU that the present machine runs code for, if need be without its instructions."""
    name, dtype = request.param
    hardware = cpu(name)
    try:
        check_instructions(hardware)
    except RunError as error:
        pytest.skip(str(error))
    if lacking_features(dot_features(hardware)):
        read = lowering.parse_program
        monkeypatch.setattr(lowering, "parse_program", lambda *texts: read(texts[0], without(texts[1], hardware)))
        monkeypatch.setattr(compat, "dot_features", lambda hardware: ())
    return Device(
        hardware, dtype, "fp16_accumulation" if name == "avx512_fp16" else "cpu", DEVICES.index((name, dtype))
    )


def check(workload: Workload, hardware: CpuSpec, template: str = "cpu") -> None:
    if template == "fp16_accumulation" and not half_sums_apply(workload, hardware):
        return  # calls would be too short
    seed = zlib.crc32(repr(workload).encode()) % 1000
    if seed % 2:  # all constants come from beyond L2: other prefetches, and orders of loops
        hardware = msgspec.structs.replace(hardware, l2=msgspec.structs.replace(hardware.l2, size_bytes=1024))
    (schedule,) = anatune.space(workload, hardware, template=template).sample(1, seed=seed)
    inputs = random_inputs(workload, seed)
    want = compute_expected(workload, inputs).allowing(error_of(schedule))
    outcome = compare(workload, run(schedule, inputs, prepacked=bool(seed % 2)), want)
    assert outcome.ok, f"{outcome.message}\n{workload.describe()}\n{schedule.describe()}"


def test_products_with_weights_of_few_bits(device: Device) -> None:
    if device.dtype != "int8":
        return  # float32 is multiplied there, by integers: once for each CPU
    for bits, (m, n, k), zeros in ((4, (5, 36, 64), False), (8, (5, 36, 64), True), (8, (1, 7, 48), False)):
        dtype, group = f"float32xint{bits}", 16 if k % 32 else 32
        check(anatune.scaled_matmul(m, n, k, dtype=dtype, group=group, zero_points=zeros), device.hardware, "scaled")


@pytest.mark.parametrize("transpose_b", [False, True], ids=["b", "bt"])
@pytest.mark.parametrize("transpose_a", [False, True], ids=["a", "at"])
def test_products_of_all_layouts_and_thin_shapes(device: Device, transpose_a: bool, transpose_b: bool) -> None:
    layout = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    for m, n, k in every_fourth(SHAPES, device.number, transpose_a, 2 * transpose_b):
        check(anatune.matmul(m, n, k, dtype=device.dtype, **layout), device.hardware, device.template)
    for m, n, k in ((5, 36, 44), (36, 5, 44))[(device.number + transpose_a + transpose_b) % 2 :][:1]:
        workload = anatune.batch_matmul(2, m, n, k, dtype=device.dtype, **layout)
        check(workload, device.hardware, device.template)


def test_products_in_einsteins_notation(device: Device) -> None:
    if device.dtype == "uint8xint8":
        pytest.skip("operands of an einsum have one dtype")
    for words in every_fourth(EINSUMS, device.number):
        extents = {letter: extent for letter, extent in EXTENTS.items() if letter in words}
        check(anatune.einsum(words, extents, device.dtype), device.hardware, device.template)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_convolutions_of_few_channels_and_pixels(device: Device, layout: str) -> None:
    zero_points = (0, 7) if "int8" in device.dtype else (0,)
    cases = [(*sizes, zero_point) for zero_point in zero_points for sizes in CONVOLUTIONS]
    for filters, width, taps, groups, zero_point in every_fourth(cases, device.number, 2 * (layout == "NHWC")):
        workload = anatune.conv2d(
            1, 12, 3, width, filters, taps, taps, padding=taps // 2, groups=groups, layout=layout,
            dtype=device.dtype, input_zero_point=zero_point,
        )  # fmt: skip
        check(workload, device.hardware, device.template)
