"""The layers of the GPU benchmark."""

import anatune
from bench.gpu.layers import DTYPES, LAYERS, is_asked, workload_of
from bench.layers import EXTRA, choose
from tests.wording import refuses


def test_layers_are_those_of_the_papers():
    for name, layer in LAYERS.items():
        if layer.group != EXTRA:
            assert layer.workload("NCHW") == anatune.layer(f"{layer.group}:{name}")
    assert len(choose(None, LAYERS)) == 6 + 13 + 11
    assert [layer.name for layer in choose("l0, R1?,m0", LAYERS)] == ["M0", "R10", "R11", "R12", "L0"]
    with refuses(SystemExit):
        choose("R99", LAYERS)


def test_a_layer_has_the_workload_that_its_dtype_asks_for():
    """Matrix units read 8 bits and tf32 along k only; float32 convolutions stay as the papers have them."""
    assert workload_of(LAYERS["L1"], "float16") == anatune.matmul(512, 512, 512, dtype="float16")
    assert workload_of(LAYERS["L1"], "tfloat32") == anatune.matmul(512, 512, 512, transpose_b=True)
    assert workload_of(LAYERS["C0"], "float16").write.shape == (32, 56, 56, 64)
    assert LAYERS["C0"].flop == workload_of(LAYERS["C0"], "float16").flop
    assert [d for d in DTYPES if is_asked(LAYERS["W0"], d)] == ["int8"]
    assert not is_asked(LAYERS["C0"], "int8")
    assert [d for d in DTYPES if is_asked(LAYERS["K3"], d)] == ["kernels"]
    assert workload_of(LAYERS["K4"], "kernels") == anatune.softmax(8192, 4096, "bfloat16")
