"""Running sums and orders of elements in models for matrix units, in Triton's interpreter."""

import numpy as np
import pytest

import anatune

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


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("falls", [False, True])
def test_equal_elements_stay_in_order(dim, falls):
    _, places, right = found(lambda x: x.sort(dim=dim, descending=falls, stable=True).indices, numbers())
    assert torch.equal(places, right)


@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_an_order(largest):
    x = torch.randperm(600).float().reshape(2, 300)
    own, values, right = found(lambda x: x.topk(20, largest=largest).values, x, hw="mi300x")
    assert torch.equal(values, right)
    assert any(launch.name.startswith("top_20_of_2x300x1") for launch in own.program.launches)


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


@pytest.mark.parametrize("size", [64, 3000])
def test_products_of_all_elements(size):
    torch.manual_seed(0)
    x = 1.0 + 0.01 * torch.randn(3, size)
    _, values, right = found(lambda x: x.prod(1), x)
    np.testing.assert_allclose(values.numpy(), right.numpy(), rtol=1e-4)
