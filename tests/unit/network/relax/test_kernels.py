"""Windows, loops over access maps and moves in a whole model, on one and several threads."""

import os

import numpy as np
import pytest

from anatune.network.compiling.session import compile as compile_model

pytest.importorskip("tvm")
torch = pytest.importorskip("torch")


class Network(torch.nn.Module):
    """An image through everything that these kernels are for."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.first = nn.Conv2d(3, 24, 3, 2, 1)
        self.depthwise = nn.Conv2d(24, 24, 3, 1, 1, groups=24)
        self.strided = nn.Conv2d(24, 24, 5, 2, 2, groups=24, bias=False)
        self.pools = nn.ModuleList([nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(2, 2)])

    def forward(self, x):
        x = torch.nn.functional.relu6(self.depthwise(torch.nn.functional.hardtanh(self.first(x), -0.5, 0.5)))
        parts = [pool(x) for pool in self.pools] + [torch.relu(self.strided(x))]
        whole = torch.cat([parts[0], torch.cat(parts[1:], 1)], 1)
        return whole.mean((2, 3)), whole.sum(1), whole


@pytest.mark.parametrize("threads", [1, 2])
def test_a_network_of_everything(threads):
    if threads > len(os.sched_getaffinity(0)):
        pytest.skip("one core")
    torch.manual_seed(0)
    module, x = Network().eval(), torch.randn(2, 3, 40, 56)
    compiled = compile_model(module, x, threads=threads)
    with torch.no_grad():
        wanted = module.double()(x.double())
    for got, want in zip(compiled(x), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6 * float(want.abs().max()))
    text = " ".join(compiled.report().split())
    for words in ("permute (", "depthwise (2)", "max (1)", "mean (2)", "concat (1)", "sum (1)"):
        assert words in text
    assert {one.name for one in compiled.summary.operators} == {"maximum", "mean", "minimum", "sum"}
    assert "operators left to TVM: " in text
    assert "maximum (1)" in text
