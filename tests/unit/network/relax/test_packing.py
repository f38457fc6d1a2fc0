"""Copies that NumPy makes of weights, beside the compiled packing functions that they stand for."""

import numpy as np
import pytest

import anatune
from anatune.codegen.compat import target_of
from anatune.core.workload.operators import conv2d, matmul
from anatune.measure.cpu.blocks import ArgumentBlock, tensor_of
from anatune.measure.run.correctness import array_dtype
from anatune.network.relax.kernels import Packer, model_kernel
from anatune.network.relax.objects import compile_objects
from anatune.network.relax.packing import apply_copies, copies_of

pytest.importorskip("tvm")

HOST = anatune.hardware("host")


def packers(workload):
    """Return different packers of a workload's best schedules."""
    schedules = anatune.plan(workload, "xeon_gold_6230r", 12, template="cpu").schedules
    known = [one for schedule in schedules for one in model_kernel("k", schedule, 1).packers.values()]
    return list({one.name: one for one in known}.values())[:4]


@pytest.mark.parametrize(
    "workload",
    [
        matmul(8, 100, 24),  # lanes that are no whole vectors
        matmul(64, 96, 128),
        conv2d(1, 16, 14, 14, 24, 3, 3, padding=1, layout="NHWC"),
        conv2d(1, 12, 15, 15, 20, 3, 3, stride=2, layout="NCHW"),
        matmul(8, 64, 32, dtype="float16"),
    ],
    ids=["rest", "matmul", "nhwc", "nchw", "float16"],
)
def test_the_same_as_the_compiled_function(workload):
    known = packers(workload)
    assert known
    assert all(one.copies for one in known)
    library = compile_objects({one.name: one.function for one in known}, target_of(HOST)).load()
    weight = workload.reads[1]
    operand = np.random.default_rng(0).standard_normal(weight.shape).astype(array_dtype(weight.dtype))
    for one in known:
        expected, packed = ArgumentBlock(weight.dtype, (one.num_elements,)), np.zeros(one.num_elements, operand.dtype)
        expected.array[...] = 0
        library[one.name](tensor_of(operand), expected.tensor)
        apply_copies(one.copies, operand, packed)
        assert np.array_equal(packed, expected.array)
        assert np.isin(operand, packed).all()


HEAD = 'def pack(w: T.Buffer((4, 6), "float32"), packed: T.Buffer((24,), "float32")):\n'


@pytest.mark.parametrize(
    "body",
    [
        " for i in range(4):\n  packed[i * 6] = w[i, 0] + w[i, 1]",  # a sum
        " for i in range(4):\n  packed[i * i] = w[i, 0]",
        " for i in range(5):\n  packed[i] = w[i, 0]",  # outside of the operand
        " for i in range(4):\n  packed[i * 7 + 6] = w[i, 0]",  # outside of the result
        " for i in range(4):\n  packed[i] = T.if_then_else(i < 2, w[i, 0], T.float32(1))",
        " for i in range(4):\n  packed[i] = T.if_then_else(i + i < 2, w[i, 0], T.Cast('float32', 0))",
        " for i in range(4):\n  packed[i] = T.bitwise_xor(w[i, 0], T.int8(-128))",
        " for i in range(1, 4):\n  packed[i] = w[i, 0]",
        " for i in T.vectorized(4):\n  packed[i] = w[i, 0]",
        " T.evaluate(T.call_extern('void', 'f', w.data))",
        " packed[0] = packed[1]",
        " packed[0]",
        " for",
    ],
)
def test_what_does_more_is_left_to_the_compiler(body):
    assert copies_of(HEAD + body) is None


def test_what_is_read_of_a_function():
    body = (
        ' T.func_attr({"global_symbol": "pack"})\n with T.sblock("fill"):\n  T.reads(w[0:4, 0:6])\n'
        "  for i in range(4):\n   for lane in range(8):\n"
        "    packed[lane + i * 6] = T.if_then_else((lane < 6), w[3, lane], T.Cast('float32', 0))\n"
        "  packed[5] = w[1, 2]"
    )
    copies = copies_of(HEAD + body)
    assert copies == (((4, 6), (0, (6, 1)), (18, (0, 1))), ((), (5, ()), (8, ())))
    packed = np.zeros(24, np.float32)
    apply_copies(copies, np.arange(24, dtype=np.float32).reshape(4, 6), packed)
    assert packed.tolist() == [18, 19, 20, 21, 22, 8, *[18, 19, 20, 21, 22, 23] * 3]


def test_what_is_computed_has_no_copies():
    winograd = conv2d(1, 16, 14, 14, 16, 3, 3, padding=1, layout="NHWC")
    schedule = anatune.plan(winograd, "xeon_gold_6230r", template="winograd").schedules[0]
    (packer,) = model_kernel("k", schedule, 1).packers.values()
    assert isinstance(packer, Packer)
    assert packer.copies is None
