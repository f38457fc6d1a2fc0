"""Models for matrix units: compiled for GPUs that are not there, run by Triton's interpreter on the device's memory."""

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels are compiled by Triton")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch

import anatune
from anatune.compiling.targets import launched
from anatune.compiling.targets.launched import LaunchedModel
from anatune.errors import BuildError, DeviceError, RunError, SpaceError, WorkloadError
from anatune.measure.cuda.driver import BorrowedBuffer, GpuFunction
from anatune.measure.emulate.triton_interpreter import interpret
from anatune.measure.run.correctness import array_dtype
from tests.unit.compiling.models import residual_network
from tests.unit.measure.cuda.test_dlpack import OnDevice

nn, functional = torch.nn, torch.nn.functional


class Block(nn.Module):
    """A layer of a transformer on tokens."""

    def __init__(self, causal=False, dim=64, heads=2, groups=2):
        super().__init__()
        self.heads, self.groups, self.causal = heads, groups, causal
        inner = dim * groups // heads
        self.table, self.first, self.second = nn.Embedding(100, dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.last = nn.LayerNorm(dim)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, inner), nn.Linear(dim, inner)
        self.out, self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, tokens):
        x = self.table(tokens)
        batch, count, dim = x.shape
        normed = self.first(x)

        def heads(made, number):
            return made.view(batch, count, number, dim // self.heads).transpose(1, 2)

        query = heads(self.query(normed), self.heads)
        key, value = (heads(one(normed), self.groups) for one in (self.key, self.value))
        shared = self.heads // self.groups
        key, value = (
            one[:, :, None].expand(-1, -1, shared, -1, -1).reshape(batch, self.heads, count, -1) for one in (key, value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, count, dim))
        return self.last(x + self.down(functional.gelu(self.up(self.second(x)))))


class LlamaLayers(nn.Module):
    """A decoder as Llama is: RMS norms, rotary embeddings, heads of keys that several of queries share, SwiGLU."""

    def __init__(self, layers=2, dim=64, heads=4, groups=2, inner=96, window=99, scale=None):
        super().__init__()
        self.window, self.scale = window, scale
        self.heads, self.groups, self.size = heads, groups, dim // heads
        self.norms = nn.ModuleList(nn.RMSNorm(dim, eps=1e-6) for _ in range(2 * layers))
        sizes = {"q": (dim, dim), "k": (dim, dim // heads * groups), "v": (dim, dim // heads * groups)}
        sizes |= {"o": (dim, dim), "gate": (dim, inner), "up": (dim, inner), "down": (inner, dim)}
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()}) for _ in range(layers)
        )

    def turned(self, x, held=0):
        places, parts = (torch.arange(size, device=x.device) for size in (held + x.shape[2], self.size // 2))
        angles = places[held:][:, None] / 100 ** (2 * parts / self.size)
        angles = torch.cat([angles, angles], -1)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    def forward(self, x, *past):
        """Past: keys, then values of each layer; what is held then is returned, too."""
        batch, count, _ = x.shape
        held, kept = past[0].shape[2] if past else 0, []
        for number, own in enumerate(self.layers):
            normed = self.norms[2 * number](x)
            q, k, v = (own[name](normed).view(batch, count, -1, self.size).transpose(1, 2) for name in "qkv")
            q, k = self.turned(q, held), self.turned(k, held)
            if past:
                k, v = torch.cat([past[2 * number], k], 2), torch.cat([past[2 * number + 1], v], 2)
                kept += [k, v]
            keys = torch.arange(held + count, device=x.device)
            last = keys[held:, None]
            mask = (keys <= last) & (keys > last - self.window)
            seen = functional.scaled_dot_product_attention(q, k, v, mask, scale=self.scale, enable_gqa=True)
            x = x + own["o"](seen.transpose(1, 2).reshape(batch, count, -1))
            normed = self.norms[2 * number + 1](x)
            x = x + own["down"](functional.silu(own["gate"](normed)) * own["up"](normed))
        return (x, *kept) if past else x


def block(**options):
    torch.manual_seed(0)
    return Block(**options).eval(), (torch.randint(0, 100, (2, 24)),)


def compiled(model, inputs, hw="h100", **more):
    return anatune.compile(model, inputs, hw=hw, **{"precision": "bfloat16", **more})


def error(model, own, inputs):
    own.interprets = True
    got = own(*(one.numpy() for one in inputs))
    want = model(*inputs).detach().numpy()
    return np.abs(got - want).max() / np.abs(want).max()


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
    assert "left to TVM: nothing" in text
    assert "8 launches" in text
    assert all("import triton" in source for source in own.sources().values())


@pytest.mark.parametrize("hw", ["mi300x", "rtx3090"])
@pytest.mark.parametrize("groups", [1, 2])
def test_causal_attention_of_shared_heads_on_other_devices(hw, groups):
    model, inputs = block(causal=True, groups=groups)
    own = compiled(model, inputs, hw)
    assert any("--causal" in kernel.workload for kernel in own.summary.kernels)
    assert error(model, own, inputs) < 2e-2


def test_a_layer_of_llama_is_nine_launches():
    torch.manual_seed(0)
    model, inputs = LlamaLayers().eval(), (torch.randn(2, 24, 64),)
    own = compiled(model, inputs)
    words = [kernel.workload.split()[0] for kernel in own.summary.kernels]
    # q, k, v are one product, and so are gate and up; the last one leaves float32
    assert words == ["matmul", "attention", "matmul", "matmul", "matmul", "matmul"]
    assert own.summary.launches == 18 + 2  # before the first and the last sum something becomes 16 bits, or float32
    assert error(model, own, inputs) < 2e-2


def test_an_attention_may_see_a_window_and_have_a_scale_of_its_own():
    torch.manual_seed(0)
    model, inputs = LlamaLayers(1, window=5, scale=0.4).eval(), (torch.randn(1, 24, 64),)
    own = compiled(model, inputs)
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
    with pytest.raises(WorkloadError, match=r"weights of LlamaLayers are on the meta device.*anatune\.compare"):
        compiled(model, inputs)


class Deep(nn.Module):
    """A product of few rows and a long sum, what is added to it, and a norm."""

    def __init__(self):
        super().__init__()
        self.product, self.last, self.norm = nn.Linear(16384, 64), nn.Linear(64, 48), nn.LayerNorm(64)

    def forward(self, x, other):
        return self.last(self.norm(other + self.product(x).relu()))


@pytest.mark.parametrize("hw", ["h100", "mi300x"])
def test_parts_of_sums_are_added_up_with_what_follows(hw):
    torch.manual_seed(0)
    model, inputs = Deep().eval(), (torch.randn(4, 16384), torch.randn(4, 64))
    own = compiled(model, inputs, hw)
    names = [launch.name for launch in own.program.launches if not launch.name.startswith("convert")]
    assert [name.split("_")[0] for name in names] == ["anatune", "sum", "anatune"]
    assert names[1].startswith("sum_of_")
    assert error(model, own, inputs) < 1e-2


def test_parts_of_a_convolution_lie_as_its_image_does():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(512, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 8, 1)).eval()
    inputs = (torch.randn(1, 512, 7, 7),)
    own = compiled(model, inputs)
    assert any(launch.name.startswith("sum_of_") for launch in own.program.launches)
    assert error(model, own, inputs) < 1e-2


def test_a_residual_network_has_its_epilogues_in_its_kernels():
    model, image = residual_network()
    inputs = (image,)
    own = compiled(model, inputs, precision="float16")
    steps = {kernel.epilogue for kernel in own.summary.kernels}
    assert ("bias", "add", "relu") in steps
    assert {kernel.layout for kernel in own.summary.kernels} == {"NHWC", ""}
    assert error(model, own, inputs) < 1e-2


def test_a_model_of_16_bits_keeps_its_inputs_and_outputs():
    model, inputs = block()
    own = compiled(model.bfloat16(), inputs, "mi300x", precision=None)
    assert own.summary.outputs[0].dtype == "bfloat16"
    own.interprets = True
    got = own(inputs[0].numpy())
    assert own(inputs[0]).dtype == torch.bfloat16
    want = model.float()(*inputs).detach().numpy()
    assert np.abs(got.astype(np.float32) - want).max() / np.abs(want).max() < 5e-2


def test_positions_are_not_multiplied_in_16_bits():
    class Turned(nn.Module):
        def forward(self, places, x):
            frequencies = 1.0 / 100 ** (torch.arange(8) / 8.0)
            angles = (frequencies[None, :, None] @ places[:, None, :].float()).transpose(1, 2)
            return x * angles.cos()

    inputs = (torch.arange(1000, 1006)[None], torch.ones(1, 6, 8))
    own = compiled(Turned().eval(), inputs)
    own.interprets = True
    got = own(*(one.numpy() for one in inputs))
    np.testing.assert_allclose(got, Turned()(*inputs).numpy(), atol=2e-2)


def test_check_runs_all_launches_in_the_interpreter(tmp_path):
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16)).eval()
    own = compiled(model, (torch.randn(20, 32),), check=True)
    assert own.summary.check is not None
    assert own.summary.check.error < 2e-2


def test_kernels_of_a_model_that_takes_long_are_checked_for_less_work(monkeypatch):
    monkeypatch.setattr("anatune.compiling.targets.triton._WHOLE_S", 0.0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).eval()
    own = compiled(model, (torch.randn(600, 512),), check=True)
    assert own.summary.check is None
    assert 0 < own.summary.emulated < 1e-2
    assert "right in Triton's interpreter at smaller sizes" in own.report()


def test_it_is_saved_and_loaded(transformer, tmp_path):
    model, inputs, own = transformer
    own.save(tmp_path / "model")
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".gpu", ".bin"}
    other = anatune.load(tmp_path / "model")
    assert other.program == own.program
    assert error(model, other, inputs) < 2e-2
    with pytest.raises(DeviceError, match="no GPU can be used here"):
        anatune.load(tmp_path / "model")(inputs[0].numpy())
    amd = msgspec.structs.replace(own.summary, arch="gfx942", machine="another")
    LaunchedModel.of(amd, own.program, own.memory).save(tmp_path / "amd")
    with pytest.raises(RunError, match="nothing launches kernels of AMD's yet"):
        anatune.load(tmp_path / "amd")(inputs[0].numpy())


class InterpretedDevice:
    """A GPU whose kernels are run by Triton's interpreter, one launch at a time, in bytes of one address space."""

    arch, index = "sm_90", 0

    def __init__(self, program):
        self.program, self.memory, self.launched, self.top = program, {}, [], 1 << 20

    def allocate(self, num_bytes):
        found = BorrowedBuffer(self.top, num_bytes)
        self.memory[self.top] = np.full(max(1, num_bytes), 0xFF, np.uint8)
        self.top += -(-max(1, num_bytes) // 256) * 256
        return found

    def at(self, address, num_bytes):
        start = max(one for one in self.memory if one <= address)
        return self.memory[start][address - start : address - start + num_bytes]

    def upload(self, buffer, array):
        self.at(buffer.address, array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, buffer, array):
        array.reshape(-1).view(np.uint8)[:] = self.at(buffer.address, array.nbytes)

    def load(self, image, name, dynamic_shared_bytes):
        assert image[:4] == b"\x7fELF"
        (kernel,) = {
            place
            for place, one in enumerate(self.program.kernels)
            if self.program.image[one.first : one.first + one.num_bytes] == image
        }
        return GpuFunction(name, 1, 0, 0, dynamic_shared_bytes, 1024, None, kernel)

    def prepare(self, function, grid, block, arguments):
        kernel = self.program.kernels[function.handle]
        assert (kernel.grid, kernel.block, kernel.function) == (grid, block, function.name)
        text = self.program.programs[kernel.program]
        *pointers, _, null = arguments
        assert int(null) == 0
        assert len(text.kernels) == 1

        def call():
            self.launched.append(function.name)
            arrays = {
                buffer.tensor: self.at(place.address, place.num_bytes).view(array_dtype(buffer.dtype))
                for buffer, place in zip(text.kernels[0].parameters, pointers, strict=True)
            }
            for name, array in interpret(text, arrays).items():  # what is not written stays what it was
                arrays[name][:] = array.reshape(-1)

        return call

    def activate(self):
        """There is one context."""

    def close(self):
        """Nothing is held."""

    def time_calls(self, call, samples):
        call()
        return [1e-6] * samples


def test_launches_on_a_device_are_right_and_timed(transformer, monkeypatch):
    model, inputs, own = transformer
    monkeypatch.setattr(own, "interprets", False)
    device = InterpretedDevice(own.program)
    monkeypatch.setattr(launched, "open_device", lambda: device)
    want = model(*inputs).detach().numpy()
    for _ in range(2):
        got = own(inputs[0])
        assert isinstance(got, torch.Tensor)
        assert np.abs(got.numpy() - want).max() / np.abs(want).max() < 2e-2
    assert len(device.launched) == 16
    times = own.profile(repeats=2)
    assert set(times) == {launch.name for launch in own.program.launches}
    assert times["anatune_1_attention"] == pytest.approx(1e-6)
    device.arch = "sm_80"
    other = LaunchedModel.of(own.summary, own.program, own.memory)
    with pytest.raises(RunError, match=r"compiled for h100_sxm \(sm_90\), and the GPU here is of sm_80"):
        other(inputs[0])


def test_devices_are_compared_without_compiling():
    model, inputs = block()
    found = anatune.compare(model, inputs, hw=["h100", "rtx3090"], precision="bfloat16")
    assert [one.hardware for one in found] == ["h100_sxm", "rtx3090"]
    assert found[0].whole_s < found[1].whole_s
    assert found[0].whole_s > sum(kernel.total_s for kernel in found[0].kernels)
    with pytest.raises(SpaceError, match="xeon_8480 is a CPU, expected GPUs"):
        anatune.compare(model, inputs, hw=["xeon_8480"], precision="bfloat16")


LINEAR = (nn.Linear(32, 16).eval(), (torch.zeros(4, 32),))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"hw": "mi300x", "precision": None}, SpaceError, r"the model is float32, .* name a precision"),
        ({"hw": "rtx2080ti"}, SpaceError, "has no matrix units that Triton makes code for"),
        ({"precision": "float32"}, SpaceError, "precision is float32, expected float16 or bfloat16 of a GPU"),
        ({"threads": 2}, SpaceError, "threads are for CPUs"),
        ({"hw": "mi300x", "trials": 4, "precision": None}, DeviceError, "planned, not measured"),
    ],
)
def test_what_cannot_be_asked_for(options, kind, message):
    with pytest.raises(kind, match=message):
        compiled(*LINEAR, **options)


def test_a_model_that_no_memory_holds_is_refused():
    class Large(nn.Module):
        def forward(self, x):
            return x.reshape(1, -1).expand(1 << 30, 16).exp() + 1.0

    with pytest.raises(SpaceError, match=r"needs .* GB on rtx3090 \(weights .*, activations .*\), which has 24.0"):
        compiled(Large().eval(), (torch.zeros(16),), "rtx3090")


def test_operators_without_kernels_are_refused():
    class Sums(nn.Module):
        def forward(self, x):
            return x.cumsum(1)

    with pytest.raises(BuildError, match="cumsum: the operator is more than loops"):
        compiled(Sums().eval(), (torch.zeros(3, 4),))


def decoder(batch=2, tokens=1, most=20, hw="h100", model=None, **more):
    """Return a decoder with caches, and it compiled for steps of so many tokens."""
    torch.manual_seed(0)
    model = (model or LlamaLayers()).eval()
    count, held = torch.export.Dim("count", min=1, max=64), torch.export.Dim("held", min=0, max=most)
    past = [torch.zeros(batch, 2, 9, 16) for _ in range(4)]
    own = anatune.compile(
        model, (torch.zeros(batch, 7, 64), *past), hw=hw, precision="bfloat16",
        dynamic_shapes=({1: count}, tuple({2: held} for _ in past)), sizes={"x_1": tokens},
        state={f"output{number + 1}": f"past_{number}" for number in range(4)}, **more,
    )  # fmt: skip
    own.interprets = True
    return model, own


@pytest.mark.parametrize(("hw", "tokens"), [("h100", 1), ("mi300x", 3)])
def test_caches_stay_on_the_device(hw, tokens):
    model, own = decoder(tokens=tokens, hw=hw)
    assert own.summary.launches <= 18 + 2 + 2  # at both ends 16 bits are made or left; tables are read once
    assert [one.after for one in own.summary.state] == [f"past_0_2 + {tokens}"] * 4
    x = torch.randn(2, 3 * tokens, 64)
    for step in range(3):
        got = own(x[:, step * tokens : (step + 1) * tokens].numpy())
        want = model(x[:, : (step + 1) * tokens])[:, -tokens:].detach().numpy()
        assert np.abs(got - want).max() / np.abs(want).max() < 2e-2
    kept = own.state
    assert kept["past_0"].shape == (2, 2, 3 * tokens, 16)
    own.reset()
    assert own.state["past_0"].shape == (2, 2, 0, 16)
    own.state = {name: array[:, :, :tokens] for name, array in kept.items()}
    np.testing.assert_array_equal(own(x[:, tokens : 2 * tokens].numpy()).shape, (2, tokens, 64))
    np.testing.assert_array_equal(own.state["past_1"], kept["past_1"][:, :, : 2 * tokens])
    own.state = {name: np.zeros((2, 2, 20, 16), np.float32) for name in kept}
    with pytest.raises(RunError, match=rf"20 elements are held along past_0_2, and {tokens} more exceed the 20"):
        own(x[:, :tokens].numpy())


def test_caches_stay_on_a_device_that_runs_them(monkeypatch):
    model, own = decoder()
    monkeypatch.setattr(own, "interprets", False)
    monkeypatch.setattr(launched, "open_device", lambda: InterpretedDevice(own.program))
    x = torch.randn(2, 2, 64)
    for step in range(2):
        got = own(x[:, step : step + 1].numpy())
    want = model(x)[:, -1:].detach().numpy()
    assert np.abs(got - want).max() / np.abs(want).max() < 2e-2
    assert own.state["past_3"].shape == (2, 2, 2, 16)
    own.reset()
    np.testing.assert_allclose(own(x[:, :1].numpy()), model(x[:, :1]).detach().numpy(), atol=0.05)


def test_sizes_that_vary_beside_a_state_are_refused():
    with pytest.raises(WorkloadError, match=r"sizes of LlamaLayers vary .*x_1.*is a GPU, where no more than how much"):
        decoder(tokens="1..4")


def test_sums_that_stay_keep_their_dtype():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.full((4,), 1000.0))

        def forward(self, x):
            self.count += x
            return self.count * 2

    own = compiled(Counter().eval(), (torch.zeros(4),))
    own.interprets = True
    for calls in (1, 2, 3):
        np.testing.assert_array_equal(own(np.ones(4, np.float32)), np.full(4, 2000.0 + 2 * calls))
    own.reset()
    own.prepared(np.ones(4, np.float32))()
    np.testing.assert_array_equal(own(np.ones(4, np.float32)), np.full(4, 2002.0))
    with pytest.raises(WorkloadError, match=r"keeps count between calls, which models of float32 for .* do not"):
        compiled(Counter().eval(), (torch.zeros(4),), precision=None)


def test_tensors_on_the_device_are_not_copied(monkeypatch):
    model, own = decoder()
    monkeypatch.setattr(own, "interprets", False)
    device = InterpretedDevice(own.program)
    monkeypatch.setattr(launched, "open_device", lambda: device)
    x = torch.randn(2, 2, 64)
    for step in range(2):
        given, made = (device.allocate(2 * 64 * 4) for _ in range(2))
        device.upload(given, x[:, step].numpy())
        own.launch(*(OnDevice(buffer.address, (2, 1, 64), (2, 32)) for buffer in (given, made)))
        got = np.empty((2, 1, 64), np.float32)
        device.download(made, got)
    want = model(x)[:, -1:].detach().numpy()
    assert np.abs(got - want).max() / np.abs(want).max() < 2e-2
    with pytest.raises(RunError, match=r"got 1 tensors, expected 2: x, output0"):
        own.launch(x)
    with pytest.raises(RunError, match=r"x is on DLPack's device \(1, 0\)"):
        own.launch(x, x)


def test_parts_of_a_state_may_become_each_other():
    class Delay(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(4))
            self.register_buffer("before", torch.ones(4))

        def forward(self, x):
            made = x - self.before
            self.before.copy_(self.last)
            self.last.copy_(x)
            return made

    own = compiled(Delay().eval(), (torch.zeros(4),))
    own.interprets = True
    given = [np.full(4, float(number), np.float32) for number in (5, 7, 11, 13)]
    for x, before in zip(given, (1.0, 0.0, 5.0, 7.0), strict=True):
        np.testing.assert_array_equal(own(x), x - before)


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


@pytest.mark.parametrize(
    "kind", ["bias behind an activation", "an activation before an attention", "a mask that hides everything", "none"]
)
def test_products_side_by_side_are_what_they_were(kind):
    torch.manual_seed(0)
    model, x = Joined(kind).eval(), torch.randn(2, 20, 64)
    own = compiled(model, (x,))
    own.interprets = True
    got, want = own(x.numpy()), model(x)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for one, other in pairs:
        assert np.abs(one - other.detach().numpy()).max() / np.abs(other.detach().numpy()).max() < 2e-2


def test_timing_leaves_the_state_as_it_is(monkeypatch):
    _, own = decoder()
    x = np.zeros((2, 1, 64), np.float32)
    own(x)
    kept = own.state
    device = InterpretedDevice(own.program)
    monkeypatch.setattr(launched, "open_device", lambda: device)
    own.interprets = False
    assert set(own.profile(x, repeats=1)) == {launch.name for launch in own.program.launches}
    own.prepared(x)()
    for name, array in own.state.items():
        np.testing.assert_array_equal(array, kept[name])
    own.interprets = True
    own.state = {name: torch.zeros(2, 2, 20, 16) for name in kept}
    with pytest.raises(RunError, match="20 elements are held"):
        own.prepared(x)
    with pytest.raises(RunError, match="x is on the meta device, which holds no elements"):
        own(torch.zeros(2, 1, 64, device="meta"))


def test_windows_and_prompts_beside_a_cache():
    model, own = decoder(most=40, model=LlamaLayers(window=12))
    x = torch.randn(2, 15, 64)
    for step in range(15):
        got = own(x[:, step : step + 1].numpy())
    want = model(x)[:, -1:].detach().numpy()
    assert np.abs(got - want).max() / np.abs(want).max() < 2e-2
    assert sum("--window 12" in kernel.workload for kernel in own.summary.kernels) == 1
    model, own = decoder(tokens=20)
    x = torch.randn(2, 20, 64)
    want = model(x).detach().numpy()
    assert np.abs(own(x.numpy()) - want).max() / np.abs(want).max() < 2e-2
    with pytest.raises(WorkloadError, match=r"21 of x_1 come in a call, and LlamaLayers holds 20 of past_0_2 at most"):
        decoder(tokens=21)
