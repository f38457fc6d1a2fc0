"""The rivals compute the layer; their kernels tell their arithmetic."""

import pytest

from anatune.measure.run.correctness import expected, random_inputs
from bench.gpu import rivals as rivals_gpu
from bench.gpu import timing
from bench.gpu.layers import LAYERS


@pytest.mark.parametrize(("name", "dtype"), [("M0", "float32"), ("R4", "float32"), ("M2", "bfloat16")])
def test_rivals_compute_the_layer(name, dtype):
    """PyTorch on the CPU computes what anatune's layer says, in its layout."""
    pytest.importorskip("torch")
    layer, notes = LAYERS[name], []
    workload = layer.workload("NCHW", dtype)
    inputs = random_inputs(workload, 0)
    want = expected(workload, inputs).result
    methods = rivals_gpu.Rivals("cpu").methods(layer, dtype, inputs, notes)
    assert {method.split(":")[0] for method in methods} == {"torch"}
    for method, read in methods.values():
        method()
        error = timing.relative_error(read().reshape(want.shape), want)
        assert error < (1e-5 if dtype == "float32" else 1e-2)
    assert not [note for note in notes if "triton" not in note]  # which says so where it finds no GPU


def test_winograd_is_told_from_its_name():
    assert rivals_gpu.is_same_arithmetic(["ampere_sgemm_128x64_tn"])
    assert not rivals_gpu.is_same_arithmetic(["void cudnn::winograd::generateWinogradTilesKernel"])
