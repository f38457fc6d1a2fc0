"""Models whose products are of 8-bit floats, as far as that is known without a GPU."""

import pytest

import anatune
from anatune.errors import SpaceError

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.tiers import slow_from  # noqa: E402
from tests.unit.network.compiling.targets.gpu_models import compiled, machine_code, nn, written  # noqa: E402
from tests.wording import refuses  # noqa: E402


class Scaled(nn.Module):
    """A product of an input whose result loops read."""

    def __init__(self, k=512, n=256):
        super().__init__()
        self.product = nn.Linear(k, n)

    def forward(self, x):
        return torch.tanh(self.product(x)) * 2.0


def outputs(model, x, hw="h100", **more):
    """Return a model, what it gives in the interpreter, and what is right."""
    own = written(model, (x,), hw, precision="fp8", **more)
    own.interprets = True
    return own, own(x).double(), model.double()(x.double()).detach()


def words(summary):
    return [kernel.workload.split()[0] for kernel in summary.kernels]


@pytest.mark.parametrize("hw", slow_from(1, ["h100", "mi300x", "rtx4090"]))
def test_rows_and_columns_have_scales_of_their_own(hw):
    torch.manual_seed(0)
    model, x = Scaled().eval(), torch.randn(48, 512)
    with torch.no_grad():
        model.product.weight *= torch.logspace(-3, 1, 256)[:, None]
        model.product.bias *= 0.0
    x *= torch.logspace(-6, -2, 48)[:, None]
    x[7] = 0.0
    own, found, right = outputs(model, x, hw)
    assert words(own.summary) == ["scaled_matmul"]
    assert own.summary.precision == "fp8"
    assert ("float8_e4m3fnuz" in own.summary.kernels[0].workload) is (hw == "mi300x")  # else the usual ones
    assert own.summary.weight_bytes < 1.2 * 512 * 256
    worst = abs(found - right).amax(1) / abs(right).amax(1)
    assert worst[torch.arange(48) != 7].max() < 0.12  # each row by its own largest number
    columns = abs(found - right).amax(0) / abs(right).amax(0)
    assert 1e-3 < columns.max() < 0.25
    assert not found[7].any()


@pytest.mark.slow
def test_sums_in_parts_have_been_scaled():
    torch.manual_seed(0)
    model, x = Scaled(16384, 64).eval(), torch.randn(4, 16384)
    own, found, right = outputs(model, x)
    assert any(launch.name.startswith("sum_of_") for launch in own.program.launches)
    assert abs(found - right).max() / abs(right).max() < 0.1


def test_products_are_of_8_bits_where_that_takes_less_time():
    small = nn.Sequential(nn.Linear(512, 2048), nn.Linear(2048, 512), nn.Tanh()).eval()
    (found,) = anatune.compare(small, torch.zeros(64, 512), hw="h100", precision="fp8")
    assert words(found) == ["matmul", "matmul"]  # a launch between them would take longer
    with torch.device("meta"):
        large = nn.Sequential(nn.Linear(8192, 8192), nn.Linear(8192, 8192), nn.Tanh()).eval()
        x = torch.zeros(512, 8192)
    (found,) = anatune.compare(large, x, hw="h100", precision="fp8")
    (before,) = anatune.compare(large, x, hw="h100", precision="bfloat16")
    assert words(found) == ["scaled_matmul"]
    assert found.whole_s < 0.8 * before.whole_s
    assert found.weight_bytes < 0.55 * before.weight_bytes


@pytest.mark.slow
def test_a_saved_model_is_the_same(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(16, 512)
    own, found, _ = outputs(Scaled().eval(), x)
    own.save(tmp_path / "saved")
    loaded = anatune.load(tmp_path / "saved")
    loaded.interprets = True
    assert torch.equal(loaded(x).double(), found)


@pytest.mark.parametrize("hw", ["a100", "mi250x", "ryzen_7950x"])
def test_devices_without_8_bit_floats_are_named(hw):
    with refuses(SpaceError):
        compiled(Scaled().eval(), (torch.zeros(4, 512),), hw, precision="fp8")


@pytest.mark.slow
@pytest.mark.parametrize("hw", ["h100", "mi300x", "rtx4090"])
def test_texts_of_8_bit_floats_are_compiled(hw):
    models = [written(Scaled().eval(), (torch.randn(48, 512),), hw, precision="fp8")]
    if hw == "h100":
        models.append(written(Scaled(16384, 64).eval(), (torch.randn(4, 16384),), hw, precision="fp8"))
    assert all(one.image[:4] == b"\x7fELF" for one in machine_code(models))
