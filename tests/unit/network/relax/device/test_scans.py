"""Running sums and orders of elements in models for matrix units, in Triton's interpreter."""

import numpy as np
import pytest

import anatune
from anatune.measure.emulate.triton_interpreter import interpret
from anatune.network.graph import building
from anatune.network.graph.nodes import Input, TensorType
from anatune.network.relax.device.scans import scan_program

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
nn = torch.nn


class Scans(nn.Module):
    """A product beside running sums, orders and products of an input's elements."""

    def __init__(self, find):
        super().__init__()
        self.product, self.find = nn.Linear(16, 16), find

    def forward(self, x, *more):
        return self.product(x[..., :16]), self.find(x, *more)


def found(find, *inputs, hw="h100"):
    """Return what a function gives in the interpreter, and what PyTorch gives."""
    model = Scans(find).eval()
    own = anatune.compile(model, inputs, hw=hw, precision="bfloat16")
    own.interprets = True
    return own, own(*inputs)[1], model(*inputs)[1].detach()


def numbers():
    """Return rows with elements that are equal, zeros of both signs, infinities and no numbers."""
    torch.manual_seed(0)
    x = torch.randn(3, 6, 20)
    x[0], x[1, :, :9], x[1, 4, 5] = x[0].round(), 0.0, -0.0
    x[2, 3, 1], x[2, 4, 2], x[2, 5, 3] = float("inf"), -float("inf"), float("nan")
    return x


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("falls", [False, True])
def test_equal_elements_stay_in_order(dim, falls):
    _, places, right = found(lambda x: x.sort(dim=dim, descending=falls, stable=True).indices, numbers())
    assert torch.equal(places, right)


@pytest.mark.slow
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_an_order(largest):
    x = torch.randperm(600).float().reshape(2, 300)
    own, values, right = found(lambda x: x.topk(20, largest=largest).values, x, hw="mi300x")
    assert torch.equal(values, right)
    assert any(launch.name.startswith("top_20_of_2x300x1") for launch in own.program.launches)


def test_no_numbers_of_any_sign_are_behind_all_others():
    x = torch.tensor([[float("nan"), -float("nan"), 3.0, -4.0, float("inf")]]).repeat(1, 4)
    _, places, right = found(lambda x: x.sort(dim=1, descending=True, stable=True).indices, x)
    assert torch.equal(places, right)


@pytest.mark.slow
@pytest.mark.parametrize("largest", [True, False])
def test_an_element_is_chosen_once(largest):
    far = -float("inf") if largest else float("inf")
    x = torch.full((2, 20), far)
    x[0, 2], x[1, 0] = 1.0, 5.0
    _, places, _ = found(lambda x: x.topk(3, largest=largest).indices, x)
    assert places.tolist() == [[2, 0, 1], [0, 1, 2]]


@pytest.mark.parametrize(("name", "first"), [("cumsum", 0.0), ("cumprod", 1.0)])
def test_running_sums_of_what_comes_before(name, first):
    node = building.cumulative(name, Input("x", TensorType((2, 5, 3), "float32")), 1, exclusive=True)
    x = np.array([1.0, 1e8, 2.0, np.inf, 3.0], np.float32)[None, :, None] * np.ones((2, 1, 3), np.float32)
    result = interpret(scan_program(node), {"data": x})["result"].reshape(x.shape)
    function = np.cumsum if name == "cumsum" else np.cumprod
    np.testing.assert_array_equal(result[:, 1:], function(x, axis=1, dtype=np.float32)[:, :-1])
    assert (result[:, 0] == first).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_running_sums_and_products(name, dim):
    torch.manual_seed(0)
    x = 1.0 + 0.1 * torch.randn(3, 70, 40)
    _, values, right = found(lambda x: getattr(x, name)(dim), x)
    np.testing.assert_allclose(values.numpy(), right.numpy(), rtol=1e-4)


def test_running_sums_go_on_from_block_to_block():
    x = torch.ones(2, 2500)
    _, values, _ = found(lambda x: x.cumsum(1), x)
    assert torch.equal(values, torch.arange(1.0, 2501.0).expand(2, -1))


def test_positions_of_what_is_not_padding():
    tokens = torch.tensor([[5, 7, 1, 1], [1, 5, 6, 7]])

    def places_of(x, tokens):
        mask = tokens.ne(1).int()
        return mask.cumsum(1).type_as(mask) * mask

    _, places, right = found(places_of, torch.zeros(2, 16), tokens)
    assert torch.equal(places, right)
    assert places[0].tolist() == [1, 2, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 3000])
def test_products_of_all_elements(size):
    torch.manual_seed(0)
    x = 1.0 + 0.01 * torch.randn(3, size)
    _, values, right = found(lambda x: x.prod(1), x)
    np.testing.assert_allclose(values.numpy(), right.numpy(), rtol=1e-4)


def test_long_running_sums_keep_what_rounding_takes_away():
    x = np.full((1, 150_000), 0.1, np.float32)
    program = scan_program(building.cumulative("cumsum", Input("x", TensorType(x.shape, "float32")), 1))
    run = interpret(program, {"data": x})["result"]
    np.testing.assert_allclose(run[0, 1024::1024], x.cumsum(1, np.float64)[0, 1024::1024], rtol=1e-6)
    x[0, 5_000], x[0, 9_000] = np.inf, np.nan
    run = interpret(program, {"data": x})["result"]
    assert np.isposinf(run[0, 5_000:9_000]).all()
    assert np.isnan(run[0, 9_000:]).all()
