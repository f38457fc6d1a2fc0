"""The rivals compute the layer; their kernels tell their arithmetic."""

import numpy as np
import pytest

from anatune.measure.run.correctness import compute_expected, random_inputs
from bench.gpu import rivals as rivals_gpu
from bench.gpu import timing
from bench.gpu.layers import LAYERS, workload_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("M0", "float32"),
        ("R4", "float32"),
        ("M2", "bfloat16"),
        ("M0", "tfloat32"),
        ("M0", "int8"),
        ("M0", "float8_e4m3fn"),
        ("R4", "float16"),
        ("K4", "kernels"),
        ("K5", "kernels"),
    ],
)
def test_rivals_compute_the_layer(name, dtype):
    """PyTorch on the CPU computes what anatune's layer says, in its layout."""
    pytest.importorskip("torch")
    layer, notes = LAYERS[name], []
    workload = workload_of(layer, dtype)
    inputs = random_inputs(workload, 0)
    want = compute_expected(workload, inputs).result
    methods = rivals_gpu.Rivals("cpu").methods(layer, dtype, inputs, notes)
    assert {method.split(":")[0] for method in methods} == {"torch"}
    for method, read in methods.values():
        method()
        error = timing.relative_error(read().reshape(want.shape), want)
        assert error <= {"float32": 1e-5, "tfloat32": 1e-5, "int8": 0.0}.get(dtype, 1e-2)
    assert not [note for note in notes if "triton" not in note]  # which says so where it finds no GPU


def test_rows_of_a_product_are_read():
    pytest.importorskip("torch")
    layer, rows = LAYERS["M0"], np.array([0, 3, 511])
    inputs = random_inputs(workload_of(layer, "int8"), 0)
    whole = compute_expected(workload_of(layer, "int8"), inputs).result
    ((_, read),) = rivals_gpu.Rivals("cpu").methods(layer, "int8", inputs, [], rows).values()
    assert (read() == whole[rows]).all()


def test_winograd_is_told_from_its_name():
    assert rivals_gpu.is_same_arithmetic(["ampere_sgemm_128x64_tn"])
    assert not rivals_gpu.is_same_arithmetic(["void cudnn::winograd::generateWinogradTilesKernel"])
