"""Models for matrix units: compiled for GPUs that are not there, run by Triton's interpreter on the device's memory."""

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels are compiled by Triton")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch

import anatune
from anatune.errors import BuildError, DeviceError, RunError, SpaceError, WorkloadError
from anatune.network.compiling.targets import launched
from anatune.network.compiling.targets.launched import LaunchedModel
from tests.tiers import slow_from
from tests.unit.network.compiling.models import residual_network
from tests.unit.network.compiling.targets.gpu_models import (
    Experts,
    LlamaLayers,
    block,
    compiled,
    error,
    experts,
    interpreted_device,
    machine_code,
    written,
)
from tests.wording import refuses

nn, functional = torch.nn, torch.nn.functional


@pytest.fixture(scope="module")
def transformer():
    model, inputs = block()
    return model, inputs, compiled(model, inputs)


def test_a_transformer_layer_is_eight_launches_and_right(transformer):
    model, inputs, own = transformer
    names = [launch.name for launch in own.program.launches]
    assert [name.split("_")[-1] for name in names] == [
        "norm", "matmul", "attention", "matmul", "norm", "matmul", "matmul", "norm"
    ]  # fmt: skip
    assert own.summary.launches == 8
    assert own.summary.operators == ()
    assert own.summary.precision == "bfloat16"
    assert error(model, own, inputs) < 2e-2
    text = own.report()
    assert "operators left to TVM: none" in text
    assert "8 launches" in text
    assert all("import triton" in source for source in own.sources().values())


@pytest.mark.parametrize(("hw", "groups"), slow_from(1, [("mi300x", 1), ("rtx3090", 1), ("mi300x", 2), ("rtx3090", 2)]))
def test_causal_attention_of_shared_heads_on_other_devices(hw, groups):
    model, inputs = block(causal=True, groups=groups)
    own = written(model, inputs, hw)
    assert any("--causal" in kernel.workload for kernel in own.summary.kernels)
    assert error(model, own, inputs) < 2e-2


def test_a_layer_of_llama_is_nine_launches():
    torch.manual_seed(0)
    model, inputs = LlamaLayers().eval(), (torch.randn(2, 24, 64),)
    own = written(model, inputs)
    words = [kernel.workload.split()[0] for kernel in own.summary.kernels]
    # q, k, v are one product, and so are gate and up; the last one leaves float32
    assert words == ["matmul", "attention", "matmul", "matmul", "matmul", "matmul"]
    assert own.summary.launches == 18 + 2  # before the first and the last sum something becomes 16 bits, or float32
    assert error(model, own, inputs) < 2e-2


@pytest.mark.slow
def test_an_attention_may_see_a_window_and_have_a_scale_of_its_own():
    torch.manual_seed(0)
    model, inputs = LlamaLayers(1, window=5, scale=0.4).eval(), (torch.randn(1, 24, 64),)
    own = written(model, inputs)
    (attention,) = (kernel.workload for kernel in own.summary.kernels if kernel.workload.startswith("attention"))
    assert "--causal --window 5" in attention
    assert error(model, own, inputs) < 2e-2


def test_weights_may_be_described():
    with torch.device("meta"):
        model, inputs = (
            LlamaLayers(dim=8192, heads=64, groups=8, inner=28672, window=512).eval(),
            (torch.zeros(1, 512, 8192),),
        )
    (found,) = anatune.compare(model, inputs, hw=["h200"], precision="bfloat16")
    assert found.weight_bytes == pytest.approx(2 * sum(one.numel() for one in model.parameters()), rel=1e-3)
    assert found.launches <= 20  # two sums may be made in parts
    with refuses(WorkloadError):
        compiled(model, inputs)


def test_a_causal_mask_of_any_size_is_found():
    """The mask of 16,384 tokens is too large to be folded."""

    class Attention(torch.nn.Module):
        def forward(self, query, key, value):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    heads = (torch.zeros(1, 64, 16384, 64, dtype=torch.bfloat16, device="meta"),) * 3
    (summary,) = anatune.compare(Attention().eval(), heads, hw=["h100"])
    (kernel,) = summary.kernels
    assert kernel.workload.startswith("attention 1x64x64x16384x16384x64 --causal")


def test_tokens_choose_experts():
    model, inputs = experts()
    own = written(model, inputs, check=True)
    names = [launch.name for launch in own.program.launches]
    assert [name.split("_")[-1] for name in names if not name.startswith("convert")] == [
        "multiply", "matmul", "where", "sum", "4", "matmul", "matmul", "etc", "matmul"
    ]  # fmt: skip
    assert [kernel.workload for kernel in own.summary.kernels if "grouped" in kernel.workload] == [
        "grouped_matmul 24x4x2x40x64 --activation", "grouped_matmul 24x4x2x64x40 --expanded"
    ]  # fmt: skip
    assert any("24x4x64 --dtype bfloat16:float32" in kernel.workload for kernel in own.summary.kernels)  # what decides
    assert "route_48_rows_to_4" in {row.name for row in own.summary.rows}
    assert own.summary.check.error < 1e-2


@pytest.mark.parametrize(
    ("hw", "options"),
    slow_from(
        1,
        [
            ("mi300x", {"biased": True}),
            ("h100", {"experts": 9, "top_k": 5, "tokens": 3}),
            ("rtx3090", {"top_k": 1, "experts": 2, "tokens": 5}),
            ("h100", {"tokens": 1}),
        ],
    ),
)
def test_experts_in_other_numbers(hw, options):
    model, inputs = experts(**options)
    own = written(model, inputs, hw, check=False)
    assert sum("grouped" in kernel.workload for kernel in own.summary.kernels) == 2
    assert error(model, own, inputs) < 1e-2


def test_weights_of_experts_may_be_described():
    with torch.device("meta"):
        model, x = Experts(experts=128, top_k=8, dim=2048, inner=768).eval(), torch.zeros(2048, 2048)
    found = anatune.compare(model, x, hw=["h100", "mi300x"], precision="bfloat16")
    assert all(one.launches <= 12 for one in found)
    assert found[0].weight_bytes == pytest.approx(2 * sum(one.numel() for one in model.parameters()), rel=1e-2)


class Deep(nn.Module):
    """A product of few rows and a long sum, what is added to it, and a norm."""

    def __init__(self):
        super().__init__()
        self.product, self.last, self.norm = nn.Linear(16384, 64), nn.Linear(64, 48), nn.LayerNorm(64)

    def forward(self, x, other):
        return self.last(self.norm(other + self.product(x).relu()))


@pytest.mark.parametrize("hw", slow_from(1, ["h100", "mi300x"]))
def test_parts_of_sums_are_added_up_with_what_follows(hw):
    torch.manual_seed(0)
    model, inputs = Deep().eval(), (torch.randn(4, 16384), torch.randn(4, 64))
    own = written(model, inputs, hw)
    names = [launch.name for launch in own.program.launches if not launch.name.startswith("convert")]
    assert [name.split("_")[0] for name in names] == ["anatune", "sum", "anatune"]
    assert names[1].startswith("sum_of_")
    assert error(model, own, inputs) < 1e-2


@pytest.mark.slow
def test_parts_of_a_convolution_lie_as_its_image_does():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(512, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 8, 1)).eval()
    inputs = (torch.randn(1, 512, 7, 7),)
    own = written(model, inputs)
    assert any(launch.name.startswith("sum_of_") for launch in own.program.launches)
    assert error(model, own, inputs) < 1e-2


def test_a_residual_network_has_its_epilogues_in_its_kernels():
    model, image = residual_network()
    inputs = (image,)
    own = written(model, inputs, precision="float16")
    steps = {kernel.epilogue for kernel in own.summary.kernels}
    assert ("bias", "add", "relu") in steps
    assert {kernel.layout for kernel in own.summary.kernels} == {"NHWC", ""}
    assert error(model, own, inputs) < 1e-2


def test_a_model_of_16_bits_keeps_its_inputs_and_outputs():
    model, inputs = block()
    own = written(model.bfloat16(), inputs, "mi300x", precision=None)
    assert own.summary.outputs[0].dtype == "bfloat16"
    own.interprets = True
    got = own(inputs[0].numpy())
    assert own(inputs[0]).dtype == torch.bfloat16
    want = model.float()(*inputs).detach().numpy()
    assert np.abs(got.astype(np.float32) - want).max() / np.abs(want).max() < 5e-2


@pytest.mark.parametrize("dtype", slow_from(1, [torch.float16, torch.bfloat16]))
@pytest.mark.parametrize("returned", ["last", "both"])
def test_nothing_is_cast_to_the_dtype_that_memory_has_already(dtype, returned):
    class Perceptron(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 16)

        def forward(self, x):
            hidden = functional.relu(self.up(x))
            return (self.down(hidden), hidden) if returned == "both" else self.down(hidden)

    model, x = Perceptron().eval().to(dtype), torch.randn(20, 32).to(dtype)
    own = written(model, (x,), precision=str(dtype).removeprefix("torch."))
    assert len(own.program.launches) == 2  # a product each
    own.interprets = True
    got, want = own(x), model(x)
    for one, other in zip(got, want, strict=True) if returned == "both" else [(got, want)]:
        assert one.dtype == dtype
        assert (one - other).abs().max() / other.abs().max() < 3e-2


@pytest.mark.slow
def test_positions_are_not_multiplied_in_16_bits():
    class Turned(nn.Module):
        def forward(self, places, x):
            frequencies = 1.0 / 100 ** (torch.arange(8) / 8.0)
            angles = (frequencies[None, :, None] @ places[:, None, :].float()).transpose(1, 2)
            return x * angles.cos()

    inputs = (torch.arange(1000, 1006)[None], torch.ones(1, 6, 8))
    own = written(Turned().eval(), inputs)
    own.interprets = True
    got = own(*(one.numpy() for one in inputs))
    np.testing.assert_allclose(got, Turned()(*inputs).numpy(), atol=2e-2)


def test_check_runs_all_launches_in_the_interpreter(tmp_path):
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16)).eval()
    own = written(model, (torch.randn(20, 32),), check=True)
    assert own.summary.check is not None
    assert own.summary.check.error < 2e-2


def test_kernels_of_a_model_that_takes_long_are_checked_for_less_work(monkeypatch):
    monkeypatch.setattr("anatune.network.compiling.targets.triton._MOST_INTERPRETER_S", 0.0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).eval()
    own = written(model, (torch.randn(600, 512),), check=True)
    assert own.summary.check is None
    assert 0 < own.summary.emulated < 1e-2
    assert "run in Triton's interpreter at smaller sizes" in " ".join(own.report().split())


def test_it_is_saved_and_loaded(transformer, tmp_path):
    model, inputs, own = transformer
    own.save(tmp_path / "model")
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".gpu", ".bin"}
    other = anatune.load(tmp_path / "model")
    assert other.program == own.program
    assert error(model, other, inputs) < 2e-2
    with refuses(DeviceError):
        anatune.load(tmp_path / "model")(inputs[0].numpy())
    amd = msgspec.structs.replace(own.summary, arch="gfx942", machine="another")
    LaunchedModel.from_program(amd, own.program, own.memory).save(tmp_path / "amd")
    with refuses(DeviceError):
        anatune.load(tmp_path / "amd")(inputs[0].numpy())


def test_launches_on_a_device_are_right_and_timed(transformer, monkeypatch):
    model, inputs, own = transformer
    monkeypatch.setattr(own, "interprets", False)
    device, driver = interpreted_device(own.program)
    monkeypatch.setattr(launched, "open_device", lambda **_: device)
    want = model(*inputs).detach().numpy()
    for _ in range(2):
        got = own(inputs[0])
        assert isinstance(got, torch.Tensor)
        assert np.abs(got.numpy() - want).max() / np.abs(want).max() < 2e-2
    assert len(driver.launched) == 16
    assert driver.calls["cuGraphLaunch"] == 1
    times = own.profile(repeats=2)
    assert set(times) == {launch.name for launch in own.program.launches}
    assert times["anatune_1_attention"] == pytest.approx(1e-6)
    device.arch = "sm_80"
    other = LaunchedModel.from_program(own.summary, own.program, own.memory)
    with refuses(RunError):
        other(inputs[0])


def test_devices_are_compared_without_compiling():
    model, inputs = block()
    found = anatune.compare(model, inputs, hw=["h100", "rtx3090"], precision="bfloat16")
    assert [one.hardware for one in found] == ["h100_sxm", "rtx3090"]
    assert found[0].whole_s < found[1].whole_s
    assert found[0].whole_s > sum(kernel.total_s for kernel in found[0].kernels)


LINEAR = (nn.Linear(32, 16).eval(), (torch.zeros(4, 32),))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"hw": "mi300x", "precision": None}, SpaceError),
        ({"hw": "rtx2080ti"}, SpaceError),
        ({"precision": "float32"}, SpaceError),
        ({"hw": "rtx2080ti", "precision": "float32", "accuracy": "relaxed"}, SpaceError),
        ({"hw": "mi300x", "precision": "float32", "accuracy": "relaxed"}, SpaceError),
        ({"threads": 2}, SpaceError),
        ({"hw": "mi300x", "trials": 4, "precision": None}, DeviceError),
    ],
)
def test_what_cannot_be_asked_for(options, kind):
    with refuses(kind):
        compiled(*LINEAR, **options)


def test_a_model_that_no_memory_holds_is_refused():
    class Large(nn.Module):
        def forward(self, x):
            return x.reshape(1, -1).expand(1 << 30, 16).exp() + 1.0

    with refuses(SpaceError):
        compiled(Large().eval(), (torch.zeros(16),), "rtx3090")


@pytest.mark.slow
def test_caches_need_memory_once():
    count, held = torch.export.Dim("count", min=1, max=64), torch.export.Dim("held", min=0, max=200)
    with torch.device("meta"):
        model, x = LlamaLayers().eval(), torch.zeros(3000, 7, 64)
        past = [torch.zeros(3000, 2, 9, 16) for _ in range(4)]
    own = anatune.hardware("h100")
    small = msgspec.structs.replace(own, dram=msgspec.structs.replace(own.dram, capacity_bytes=200_000_000))
    (found,) = anatune.compare(
        model, (x, *past), hw=[small], precision="bfloat16", sizes={"x_1": 1},
        dynamic_shapes=({1: count}, tuple({2: held} for _ in past)),
        state={f"output{number + 1}": f"past_{number}" for number in range(4)},
    )  # fmt: skip
    assert found.launches  # of caches there are 154 MB, and activations beside


@pytest.mark.slow
def test_a_step_beside_many_held_tokens_is_one_model():
    count, held = torch.export.Dim("count", min=1, max=64), torch.export.Dim("held", min=0, max=4224)
    with torch.device("meta"):
        model, x = LlamaLayers(1, window=9999).eval(), torch.zeros(8, 7, 64)
        past = [torch.zeros(8, 2, 9, 16) for _ in range(2)]
    (summary,) = anatune.compare(
        model, (x, *past), hw=["h100"], precision="bfloat16", sizes={"x_1": 1},
        dynamic_shapes=({1: count}, tuple({2: held} for _ in past)), state={"output1": "past_0", "output2": "past_1"},
    )  # fmt: skip
    assert "attention 8x4x2x1x4224x16 --dtype bfloat16" in {one.workload for one in summary.kernels}


@pytest.mark.slow
def test_masks_of_8192_tokens_are_part_of_an_attention():
    with torch.device("meta"):
        model, inputs = LlamaLayers(1, window=9999).eval(), (torch.zeros(1, 8192, 64),)
    (summary,) = anatune.compare(model, inputs, hw=["h100"], precision="bfloat16")
    assert "attention 1x4x2x8192x8192x16 --causal --dtype bfloat16" in {one.workload for one in summary.kernels}


@pytest.mark.slow
def test_scores_without_addresses_are_refused():
    class Scores(nn.Module):
        def forward(self, x, mask):
            return torch.softmax(x @ x.transpose(1, 2) + mask, -1) @ x

    with torch.device("meta"):
        inputs = torch.zeros(64, 8192, 16), torch.zeros(1, 8192, 8192)
    with refuses(SpaceError):
        anatune.compare(Scores().eval(), inputs, hw=["h100"], precision="bfloat16")


def test_operators_without_kernels_are_refused():
    class Sorted(nn.Module):
        def forward(self, x):
            return x.sort(dim=1).indices

    with refuses(BuildError):
        compiled(Sorted().eval(), (torch.zeros(3, 5000),))


class Joined(nn.Module):
    """Products of the same data, whose readers want more than columns."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.q, self.k, self.v = kind, *(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        if self.kind == "bias behind an activation":
            return (torch.relu(functional.linear(x, self.q.weight)) + self.q.bias) * self.v(x)
        query = functional.relu(self.q(x)) if self.kind == "an activation before an attention" else self.q(x)
        q, k, v = (one.view(2, 20, 4, 16).transpose(1, 2) for one in (query, self.k(x), self.v(x)))
        lowest = torch.finfo(torch.float32).min
        mask = torch.full((20, 20), lowest) if self.kind == "a mask that hides everything" else None
        return functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(2, 20, 64), query


KINDS = ["bias behind an activation", "an activation before an attention", "a mask that hides everything", "none"]


@pytest.mark.parametrize("kind", slow_from(2, KINDS))
def test_products_side_by_side_are_what_they_were(kind):
    torch.manual_seed(0)
    model, x = Joined(kind).eval(), torch.randn(2, 20, 64)
    own = written(model, (x,))
    own.interprets = True
    got, want = own(x.numpy()), model(x)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for one, other in pairs:
        assert np.abs(one - other.detach().numpy()).max() / np.abs(other.detach().numpy()).max() < 2e-2


@pytest.mark.slow
@pytest.mark.parametrize("hw", ["h100", "mi300x", "rtx3090"])
def test_texts_of_these_models_are_compiled(hw):
    """Where the tests above read and interpret texts, what Triton's compiler says of each of them."""
    torch.manual_seed(0)
    deep, image = (torch.randn(4, 16384), torch.randn(4, 64)), torch.randn(1, 512, 7, 7)
    convolutions = nn.Sequential(nn.Conv2d(512, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 8, 1)).eval()
    residual, picture = residual_network()
    cases = {
        "mi300x": [(Deep().eval(), deep), block(causal=True, groups=1), experts(biased=True)],
        "rtx3090": [block(causal=True, groups=1), block(causal=True), experts(top_k=1, experts=2, tokens=5)],
        "h100": [
            (LlamaLayers().eval(), (torch.randn(2, 24, 64),)), (Deep().eval(), deep), (convolutions, (image,)),
            (LlamaLayers(1, window=5, scale=0.4).eval(), (torch.randn(1, 24, 64),)), (residual, (picture,)),
            experts(), experts(experts=9, top_k=5, tokens=3), experts(tokens=1),
            *((Joined(kind).eval(), (torch.randn(2, 20, 64),)) for kind in KINDS),
        ],
    }  # fmt: skip
    assert all(one.image[:4] == b"\x7fELF" for one in machine_code(written(*case, hw) for case in cases[hw]))
