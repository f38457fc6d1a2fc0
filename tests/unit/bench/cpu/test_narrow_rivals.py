"""oneDNN's narrow kernels through PyTorch compute the layer."""

import pytest

from bench.cpu.narrow_rivals import DTYPES
from bench.cpu.rivals import rivals
from bench.layers import Convolution, Matmul

torch = pytest.importorskip("torch", reason="the rivals are PyTorch's")

LAYERS = [
    Matmul("T0", "tests", 32, 24, 48),
    Convolution("T1", "tests", 16, 8, 24, 3, 2, 1),
    Convolution("T2", "tests", 16, 8, 24, 1, 1, 0),
]


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_calls_agree_with_float32(layer, dtype):
    notes: list[str] = []
    calls = rivals(torch, layer, notes, dtype)
    if not calls:
        pytest.skip(notes[0])  # the processor or the library has no such kernel
    assert all(name.startswith(("torch:", "ort:")) for name in calls)
    assert not any("differs" in note for note in notes)
