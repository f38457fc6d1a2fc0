"""PyTorch's exported quantisation: what its quantisers write between a model's operators."""

import pytest

from anatune.errors import WorkloadError
from anatune.network.compiling.session import compile as compile_model
from tests.wording import refuses

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytest.importorskip("torch.ao.quantization.fx._decomposed")
decomposed = torch.ops.quantized_decomposed


class Quantised(torch.nn.Module):
    """A convolution, a residual sum and a linear layer, as ``convert_pt2e`` leaves them."""

    def __init__(self, scale=0.04):
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.scale = scale
        self.register_buffer("weight", torch.randint(-127, 128, (4, 4, 3, 3), dtype=torch.int8, generator=random))
        self.register_buffer("scales", 0.01 + 0.01 * torch.rand(4, generator=random))
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))
        self.register_buffer("last", torch.randint(-127, 128, (5, 4), dtype=torch.int8, generator=random))
        self.bias = torch.nn.Parameter(torch.randn(4, generator=random))

    def through(self, x, scale, zero, low=0):
        settings = (scale, zero, low, 255, torch.uint8)
        return decomposed.dequantize_per_tensor(decomposed.quantize_per_tensor(x, *settings), *settings)

    def forward(self, x):
        settings = (self.scales, self.zeros, 0, -128, 127, torch.int8)
        weight = decomposed.dequantize_per_channel(self.weight, *settings)
        x = self.through(x, self.scale, 128)
        y = torch.nn.functional.conv2d(x, weight, self.bias, padding=1)
        y = self.through(torch.nn.functional.max_pool2d(torch.relu(y), 2), 0.05, 0)
        y = self.through(y + torch.nn.functional.avg_pool2d(x, 2), 0.06, 30, low=10)
        y = self.through(torch.flatten(torch.nn.functional.adaptive_avg_pool2d(y, 1), 1), 0.03, 20)
        last = decomposed.dequantize_per_tensor(self.last, 0.02, 0, -128, 127, torch.int8)
        return torch.nn.functional.linear(y, last)


def test_exported_quantisation_is_compiled_to_products_of_integers():
    summary = compile_model(Quantised().eval(), (torch.randn(1, 4, 8, 8),), threads=1).summary
    assert [kernel.epilogue for kernel in summary.kernels] == [("scale", "bias", "requantize"), ("bias", "scale")]
    assert summary.check.reference == "PyTorch in float64"
    assert summary.check.error <= 0.03


def test_a_scale_that_is_none_is_one_line():
    with refuses(WorkloadError):
        compile_model(Quantised(float("nan")).eval(), (torch.randn(1, 4, 8, 8),), threads=1)


def test_weights_of_few_bits_stay_packed():
    torchao = pytest.importorskip("torchao.quantization")
    settings = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32))
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 5, bias=False)).eval()
    torchao.quantize_(model, settings, filter_fn=lambda module, _: getattr(module, "in_features", 0) == 64)
    summary = compile_model(model, (torch.randn(3, 64),), threads=1).summary
    assert [kernel.template for kernel in summary.kernels] == ["scaled", "cpu"]
    assert summary.check.error <= 1e-5
