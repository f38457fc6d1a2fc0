"""Networks of float32 whose products are tf32's: with accuracy relaxed, on NVIDIA's matrix units."""

import itertools

import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels are written for Triton")
pytest.importorskip("torch", reason="the networks are PyTorch's")

import torch
from torch import nn

import anatune
from anatune.errors import BuildError, SpaceError, WorkloadError
from anatune.network.compiling.request import CompileRequest, MeasuringOptions
from anatune.network.compiling.targets import target_of
from anatune.network.relax.device.ir import NoSourceError
from anatune.network.report import model_dict, model_lines
from tests.tiers import slow_from
from tests.unit.network.compiling.models import residual_network
from tests.unit.network.compiling.targets.gpu_models import block, error, machine_code, written
from tests.wording import refuses

ROUNDED = 2e-3
"""Of an output, over its largest magnitude, after a few products of operands with 10 bits behind the point."""


def relaxed(model, inputs, hw="a100", **more):
    return written(model, inputs, hw, precision=None, accuracy="relaxed", **more)


@pytest.mark.slow
@pytest.mark.parametrize("hw", ["a100", "rtx3090", "h100"])
def test_texts_of_tf32_are_compiled(hw):
    model, inputs = block()
    assert machine_code([relaxed(model, inputs, hw)])


def test_a_transformer_layer_of_float32_is_tf32_and_is_saved(tmp_path):
    model, inputs = block()
    own = relaxed(model, inputs, "rtx3090")
    assert own.summary.precision == "float32"
    assert {kernel.template for kernel in own.summary.kernels} == {"triton"}
    assert {kernel["rounded_to"] for kernel in model_dict(own.summary)["kernels"]} == {"tf32"}
    assert "rounded to" in "\n".join(map(str, model_lines(own.summary)))
    assert own.summary.operators == ()
    assert any('input_precision="tf32"' in text for text in own.sources().values())
    own.save(tmp_path / "layer")
    assert 0 < error(model, anatune.load(tmp_path / "layer"), inputs) < ROUNDED


@pytest.mark.slow
def test_a_residual_network_errs_as_tf32_does():
    model, x = residual_network()
    own = relaxed(model, (x,), "h100")
    assert 1e-6 < error(model, own, (x,)) < ROUNDED  # the interpreter rounds operands to tf32


@pytest.mark.parametrize("seed", slow_from(1, range(4)))
def test_networks_of_any_sizes_err_as_tf32_does(seed):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    sizes = [int(size) for size in rng.integers(1, 70, 4)]
    steps = [nn.ReLU, nn.GELU, nn.Sigmoid]
    layers = [
        layer
        for first, last in itertools.pairwise(sizes)
        for layer in (nn.Linear(first, last, bias=bool(rng.integers(2))), steps[rng.integers(3)]())
    ]
    model, x = nn.Sequential(*layers).eval(), torch.randn(int(rng.integers(1, 40)), sizes[0])
    own = relaxed(model, (x,))
    assert error(model, own, (x,)) < ROUNDED


@pytest.mark.parametrize(
    ("hw", "options", "kind"),
    [
        ("a100", {}, "GpuTarget"),
        ("a100", {"accuracy": "relaxed"}, "TritonTarget"),
        ("a100", {"accuracy": "relaxed", "precision": "float32"}, "TritonTarget"),
        ("a100", {"accuracy": "relaxed", "measuring": MeasuringOptions(records="log.jsonl")}, "GpuTarget"),
        ("t4", {"accuracy": "relaxed"}, "GpuTarget"),
        ("v100", {"accuracy": "relaxed"}, "GpuTarget"),
        ("rtx2080ti", {"accuracy": "relaxed"}, "GpuTarget"),
    ],
)
def test_tf32_is_where_it_is_admitted_and_the_device_has_it(hw, options, kind):
    assert type(target_of(anatune.hardware(hw), CompileRequest(**options))).__name__ == kind


class Angles(nn.Linear):
    """A layer behind which stands a function that has no Triton source."""

    def forward(self, x):
        return torch.atan(super().forward(x))


@pytest.mark.parametrize("model", [nn.Linear(4, 4, dtype=torch.float64), Angles(4, 4)], ids=["float64", "atan"])
def test_what_has_no_code_by_triton_stays_on_cuda_cores(model):
    """Numbers of 64 bits would be rounded."""
    model, x = model.eval(), torch.randn(2, 4).to(model.weight.dtype)
    summary = anatune.compile(model, x, hw="a100", accuracy="relaxed").summary
    assert summary.kernels or summary.operators
    assert "triton" not in {kernel.template for kernel in summary.kernels}
    with refuses((SpaceError, BuildError)):
        anatune.compile(model, x, hw="a100", accuracy="relaxed", precision="float32")


def test_what_a_compiler_says_is_no_refusal():
    """Else a fault of Triton's would show as a slower network only."""
    target = target_of(anatune.hardware("a100"), CompileRequest(accuracy="relaxed"))
    assert target.choose_fallback(BuildError("ptxas ended")) is None
    assert type(target.choose_fallback(NoSourceError("atan"))).__name__ == "GpuTarget"


def test_devices_are_compared_in_tf32_where_it_is_admitted():
    model, x = nn.Linear(64, 64).eval(), torch.zeros(32, 64)
    with refuses(SpaceError):
        anatune.compare(model, x, hw=["a100"])
    (summary,) = anatune.compare(model, x, hw=["a100"], accuracy="relaxed")
    assert summary.precision == "float32"
    with refuses(SpaceError):
        anatune.compare(model, x, hw=["t4"], accuracy="relaxed")


def test_sizes_that_vary_are_refused():
    model, x = nn.Linear(64, 64).eval(), torch.zeros(32, 64)
    rows = torch.export.Dim("rows", min=2, max=64)
    with refuses(WorkloadError):
        relaxed(model, (x,), dynamic_shapes=({0: rows},))
