"""Buffers that modules of PyTorch's write into stay in compiled models."""

import numpy as np
import pytest

import anatune

pytest.importorskip("tvm")
torch = pytest.importorskip("torch")


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(1, 2, 12, 4))
        self.register_buffer("calls", torch.full((3,), 2.0))

    def forward(self, x, places):
        self.rows.index_copy_(2, places, x)
        self.calls.add_(1)
        return self.rows.sum(2) * self.calls[0]


def test_buffers_are_state(tmp_path):
    module = Cached().eval()
    x, places = torch.randn(1, 2, 3, 4), torch.arange(3)
    model = anatune.compile(module, (x, places), threads=1)
    assert torch.equal(module.calls, torch.full((3,), 2.0))  # checking has left the module as it was
    assert "put (1)" in model.report()
    model.save(tmp_path / "saved")
    for own in (model, anatune.load(tmp_path / "saved")):
        for step in range(2):
            want = x.sum(2) * (step + 1) * (step + 3)
            assert torch.allclose(own(x, places + 3 * step), want, rtol=1e-5, atol=1e-5)
        assert np.array_equal(own.state["calls"], [4.0] * 3)
        assert np.array_equal(own.state["rows"][0, :, 3:6], x[0].numpy())
        own.reset()
        assert np.array_equal(own.state["calls"], [2.0] * 3)
        assert not own.state["rows"].any()
