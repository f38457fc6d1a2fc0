"""Which schedules sum products of neighbours with one instruction, and what they must pack for it."""

import msgspec
import pytest

from anatune import api
from anatune.core.hardware.cpu_groups import DotInstruction
from anatune.core.hardware.dot import dot_features, dot_instructions, dot_operands
from anatune.core.workload.operators import batch_matmul, conv2d, depthwise_conv2d, matmul
from anatune.errors import SpaceError
from anatune.templates.cpu.dot import copied_dtypes, dot_group, dot_note, half_sums_apply, most_half_terms
from anatune.templates.cpu.space import CpuSpace
from tests.wording import refuses

ZEN4 = api.hardware("ryzen_7950x")
CASCADE_LAKE = api.hardware("xeon_gold_6230r")
SAPPHIRE_RAPIDS = api.hardware("xeon_8480")


def group(workload, hardware=ZEN4, simd=None):
    return dot_group(workload, hardware, simd or CpuSpace(workload, hardware, lambda _: True).simd_axis)


def test_weights_are_packed_in_groups_and_activations_where_their_groups_are_apart():
    dot = group(matmul(6, 48, 64, dtype="bfloat16"))
    assert dot[:6] == ("vdpbf16ps", "k", 2, "B", "A", ("B",))
    assert group(matmul(6, 48, 64, dtype="bfloat16", transpose_a=True)).packed == ("A", "B")
    assert group(batch_matmul(2, 6, 48, 64, dtype="bfloat16")).packed == ("B",)
    nhwc = group(conv2d(1, 6, 9, 9, 20, 3, 3, layout="NHWC", dtype="bfloat16"))
    assert nhwc[:6] == ("vdpbf16ps", "rc", 2, "weight", "data", ("weight",))
    assert group(conv2d(1, 6, 9, 9, 20, 3, 3, dtype="bfloat16")).packed == ("data", "weight")


def test_no_group_without_instruction_neighbours_or_two_operands():
    pairs = matmul(6, 48, 64, dtype="bfloat16")
    assert group(pairs, CASCADE_LAKE) is None
    assert group(matmul(6, 48, 64)) is None
    assert group(matmul(6, 48, 1, dtype="bfloat16")) is None
    assert group(depthwise_conv2d(1, 20, 12, 12, 3, 3, dtype="bfloat16")) is None
    assert group(pairs, simd="k") is None
    assert group(conv2d(1, 8, 9, 9, 16, 3, 3, groups=2, dtype="bfloat16")) is None


def test_instructions_need_their_vectors():
    assert dot_instructions(ZEN4) == ("vdpbf16ps", "vpdpbusd")
    assert dot_features(ZEN4) == ("avx512bf16", "avx512vnni")
    assert dot_features(CASCADE_LAKE) == ("avx512vnni",)
    narrow = msgspec.structs.replace(
        ZEN4, compute=msgspec.structs.replace(ZEN4.compute, isa="avx2"),
        vpdpbssd=DotInstruction(source="test", rate=4.0, latency_cycles=5.0),
    )  # fmt: skip
    assert dot_features(narrow) == ("avxvnni", "avxvnniint8")
    assert dot_operands("vdpbf16ps") == ("bfloat16", "bfloat16", 2)


def test_a_schedule_packs_what_the_instruction_reads():
    workload = matmul(6, 48, 64, dtype="bfloat16")
    space = CpuSpace(workload, ZEN4, lambda _: True)
    assert space.must_pack == ("B",)
    assert space.choices["pack.B"] == (1,)
    assert space.schedule({}).options["packed"] == ("B",)
    with refuses(SpaceError):
        space.schedule({}, packed=()).check()


def test_a_matrix_of_one_row_is_packed_too():
    space = CpuSpace(matmul(1, 48, 64, dtype="bfloat16"), ZEN4, lambda _: True)
    assert space.simd_axis == "j"
    assert space.schedule({}).options["packed"] == ("B",)


def test_signed_and_shifted_operands():
    signed = group(matmul(6, 48, 64, dtype="int8"), CASCADE_LAKE)
    assert signed[:3] == ("vpdpbusd", "k", 4)
    assert (signed.flips, signed.shift) == (True, 128)
    unsigned = group(matmul(6, 48, 64, dtype="uint8xint8", input_zero_point=3), CASCADE_LAKE)
    assert (unsigned.flips, unsigned.shift) == (False, 3)
    assert group(matmul(6, 48, 64, dtype="uint8xint8")).shift == 0
    assert dot_operands("vpdpbusd") == ("uint8", "int8", 4)


def test_pairs_of_8_bits_are_widened_where_there_is_no_vnni():
    zen3, shifted = api.hardware("epyc_7763"), matmul(6, 48, 64, dtype="uint8xint8", input_zero_point=3)
    dot = group(shifted, zen3)
    assert dot[:6] == ("vpmaddwd", "k", 2, "B", "A", ("B",))
    assert (dot.flips, dot.shift) == (False, 0)
    assert copied_dtypes(shifted, "j", dot) == {"A": "int16"}
    assert group(shifted, CASCADE_LAKE).instruction == "vpdpbusd"
    schedule = CpuSpace(shifted, zen3, lambda _: True).schedule({}, packed=("A", "B")).check()
    assert schedule.options["packed_ahead"] == ("B",)
    with refuses(SpaceError):
        msgspec.structs.replace(schedule, options={**schedule.options, "packed_ahead": ("A", "B")}).check()


def test_elements_for_all_lanes_are_converted_once_in_a_copy_and_groups_filled_up():
    pairs = matmul(6, 48, 63, dtype="bfloat16")
    assert copied_dtypes(pairs, "j", None) == {"A": "float32"}
    assert copied_dtypes(pairs, "j", None, ahead=("A",)) == {}
    assert copied_dtypes(pairs, "j", group(pairs)) == {"A": "bfloat16"}
    assert copied_dtypes(matmul(6, 48, 64, dtype="bfloat16"), "j", group(pairs)) == {}
    assert copied_dtypes(matmul(6, 48, 63), "j", None) == {}


def test_a_plan_says_which_instruction_multiplies_or_that_it_is_slow():
    pairs = matmul(6, 48, 64, dtype="bfloat16")
    assert dot_note(pairs, ZEN4, "j") == "vdpbf16ps sums 2 products of neighbours along k at a time"
    assert "the CPU has no instruction for them" in dot_note(pairs, CASCADE_LAKE, "j")
    assert "no instruction fits the layout" in dot_note(pairs, ZEN4, "k")
    assert dot_note(matmul(6, 48, 64), ZEN4, "j") == ""


def test_halves_are_grouped_only_where_sums_in_half_precision_are_asked_for():
    halves = matmul(6, 48, 256, dtype="float16")
    assert dot_features(SAPPHIRE_RAPIDS) == ("avx512bf16", "avx512fp16", "avx512vnni")
    assert dot_operands("vfmaddph") == ("float16", "float16", 2)
    assert dot_group(halves, SAPPHIRE_RAPIDS, "j") is None
    dot = dot_group(halves, SAPPHIRE_RAPIDS, "j", extension="fp16")
    assert dot[:6] == ("vfmaddph", "k", 2, "B", "A", ("B",))
    assert dot_group(halves, ZEN4, "j", extension="fp16") is None
    assert dot_group(matmul(6, 48, 256, dtype="bfloat16"), SAPPHIRE_RAPIDS, "j", extension="fp16") is None
    assert dot_note(halves, SAPPHIRE_RAPIDS, "j", extension="fp16").endswith("along k at a time, in half precision")
    note = dot_note(halves, SAPPHIRE_RAPIDS, "j")
    assert note.startswith("slow: ")
    assert note.endswith("(vfmaddph sums in half precision: template fp16_accumulation, at --accuracy relaxed)")
    assert "the CPU has no instruction for them" in dot_note(halves, ZEN4, "j")


@pytest.mark.parametrize(
    ("workload", "most"),
    [
        (matmul(6, 48, 1024, dtype="float16"), 128),
        (conv2d(1, 64, 9, 9, 64, 3, 3, layout="NHWC", dtype="float16"), 128 // 9),
        (matmul(6, 48, 1018, dtype="float16"), None),  # 2 x 509: calls of two products
        (conv2d(1, 3, 19, 19, 64, 7, 7, layout="NHWC", dtype="float16"), None),
        (matmul(6, 48, 16, dtype="float16"), None),
        (depthwise_conv2d(1, 20, 12, 12, 3, 3, dtype="float16"), None),
        (matmul(6, 48, 1024), None),
    ],
)
def test_sums_in_half_precision_apply_where_calls_are_long_enough(workload, most):
    assert half_sums_apply(workload, SAPPHIRE_RAPIDS) is (most is not None)
    assert not half_sums_apply(workload, ZEN4)
    if most is not None:
        simd = CpuSpace(workload, SAPPHIRE_RAPIDS, lambda _: True).simd_axis
        assert most_half_terms(workload, dot_group(workload, SAPPHIRE_RAPIDS, simd, extension="fp16")) == most
