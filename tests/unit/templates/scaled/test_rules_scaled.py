"""Products of float32 with weights of 8 and 4 bits: rules, space, model."""

import json

import pytest

import anatune
from anatune import api
from anatune.core.accuracy import accuracy_of, error_of
from anatune.errors import SpaceError, WorkloadError
from anatune.templates import SCALED
from anatune.templates.scaled.rules import change_rows, product_of, set_floats
from tests.wording import refuses

XEON, ZEN3, ARM = (anatune.hardware(name) for name in ("xeon_gold_6230r", "amd_epyc_7763", "cortex_a72"))
STEP = anatune.scaled_matmul(1, 2048, 2048, dtype="float32xint4", group=32)


def test_memory_binds_a_row_of_cold_weights_and_products_bind_a_prompt():
    row = anatune.scaled_matmul(1, 65536, 2048, dtype="float32xint8", group=32)  # more than the last cache holds
    plan = anatune.plan(row, ZEN3, 1, threads=1)
    assert plan.predictions[0].bound_by == "dram"
    assert plan.predictions[0].parts["dram_s"] == pytest.approx(
        sum(one.num_bytes for one in row.reads) / ZEN3.dram.core_bandwidth_bytes_per_s, rel=0.02
    )
    prompt = anatune.scaled_matmul(512, 2048, 2048, dtype="float32xint4", group=32)
    plan = anatune.plan(prompt, ZEN3, 1, threads=1)
    assert plan.predictions[0].bound_by == "product"
    assert plan.best.options["floats"]
    assert not any(one.options.get("floats") for one in anatune.plan(STEP, ZEN3, 8).schedules)


def test_one_digit_is_for_relaxed_accuracy_or_data_that_may_be_rounded():
    model = api.model(STEP, ZEN3, "scaled")
    single_digit, exact = (model.space.schedule({"j": (2,)}, digits) for digits in (1, 3))
    assert (accuracy_of(single_digit), accuracy_of(exact)) == ("relaxed", "standard")
    assert error_of(exact) == 0.0 < error_of(single_digit) < 0.1
    assert anatune.plan(STEP, ZEN3, 1).best.options["digits"] == 3
    assert anatune.plan(STEP, ZEN3, 1, accuracy="relaxed").best.options["digits"] == 1
    rounded = anatune.scaled_matmul(1, 2048, 2048, dtype="float32xint4", group=32, rounded=True)
    assert accuracy_of(anatune.plan(rounded, ZEN3, 1).best) == "standard"
    assert anatune.plan(rounded, ZEN3, 1).best.options["digits"] == 1


@pytest.mark.parametrize(
    ("dtype", "instruction", "digits"), [("float32xint4", "maddubs", 3), ("float32xint8", "maddwd", 2)]
)
def test_the_instruction_follows_from_bits_and_processor(dtype, instruction, digits):
    workload = anatune.scaled_matmul(1, 64, 64, dtype=dtype, group=32)
    product = product_of(workload, ZEN3)
    assert (product.instruction, product.exact) == (instruction, digits)
    assert product_of(workload, XEON).instruction == "vpdpbusd"
    assert not SCALED.takes(workload, ARM)
    with refuses(SpaceError):
        anatune.plan(workload, ARM, template="scaled")
    with refuses(SpaceError):
        anatune.plan(workload, ARM)


def test_what_has_no_kernel_is_refused():
    short = anatune.scaled_matmul(4, 16, 20, dtype="float32xint8")
    assert not SCALED.takes(short, ZEN3)
    with refuses(SpaceError):
        anatune.plan(short, ZEN3, template="scaled")
    with refuses(SpaceError):
        anatune.plan(STEP, "h100_sxm")
    with refuses(WorkloadError):
        anatune.scaled_matmul(2, 16, 256, dtype="float32xint8", scales="blocks")


def test_rows_are_those_of_another_extent():
    schedule = api.model(STEP, ZEN3, "scaled").space.schedule({})
    more = anatune.scaled_matmul(37, 2048, 2048, dtype="float32xint4", group=32)
    space = api.model(more, ZEN3, "scaled").space
    original = space.schedule({"i": (4, 4), "j": (2,)})
    assert original.tiles["i"] == (3, 4, 4)
    most, few = (anatune.scaled_matmul(rows, 2048, 2048, dtype="float32xint4", group=32) for rows in (100, 11))
    unpacked = set_floats(original, True)
    assert change_rows(unpacked, most).check().tiles["i"] == (7, 4, 4)
    assert change_rows(unpacked, most).options["floats"]
    assert "floats" not in change_rows(unpacked, few).check().options
    assert change_rows(original, most) == set_floats(change_rows(unpacked, most), False)
    assert schedule.tiles["k"] == (64, 32)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32xint4", "group": 48},
        {"dtype": "float32xint4:float16"},
        {"dtype": "bfloat16xint4", "epilogue": ("bias",)},
        {"dtype": "float32xint8", "epilogue": ("scale",)},
        {"dtype": "bfloat16xint8", "zero_points": True},
    ],
)
def test_what_is_no_such_product_is_said_in_a_line(options):
    with refuses(WorkloadError) as error:
        anatune.scaled_matmul(4, 64, 512, **options)
    assert "\n" not in str(error.value)


def test_schedules_of_others_are_refused():
    schedule = api.model(STEP, ZEN3, "scaled").space.schedule({})
    for options in ({"digits": 2}, {"digits": 3, "parallel": 1}):
        wrong = schedule.to_dict() | {"options": options}
        with refuses(SpaceError):
            anatune.Schedule.from_json(json.dumps(wrong)).check()
