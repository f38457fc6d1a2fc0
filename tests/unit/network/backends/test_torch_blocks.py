"""Operators between compiled blocks run once a call, the first among them, in order, on memory as PyTorch lays it."""

import warnings

import pytest

import anatune.network.backends.torch as adapter
from tests.tiers import slow_from

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
F = torch.nn.functional

calls = []


@torch.library.custom_op("anatune_tests::noted", mutates_args=())
def noted(x: torch.Tensor, word: str) -> torch.Tensor:
    calls.append((word, x.stride()))
    return x * 2


@noted.register_fake
def _(x, word):
    return torch.empty_like(x)


@torch.library.custom_op("anatune_tests::told", mutates_args=())
def told(x: torch.Tensor) -> None:
    calls.append(("told", x.stride()))


@told.register_fake
def _(x):
    return None


@torch.library.custom_op("anatune_tests::doubled", mutates_args=("x",))
def doubled(x: torch.Tensor) -> None:
    calls.append(("doubled", x.stride()))
    x.mul_(2)


@doubled.register_fake
def _(x):
    return None


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    calls.clear()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


LAYER = torch.nn.Linear(6, 6).eval()
WEIGHT = torch.randn(6, 6)


def unread(x):
    noted(x, "a") * 3
    return LAYER(x)


def unread_random(x):
    torch.rand(3)
    return LAYER(x)


def returns_nothing(x):
    y = LAYER(x)
    told(y)
    return y


def writes(x):
    y = LAYER(x)
    doubled(y)
    return LAYER(y)


def in_order(x):
    y = LAYER(x)
    late = noted(y, "late")
    early = noted(x, "early")
    return LAYER(y + early) + late


def strided(x):
    return noted((LAYER(x) @ WEIGHT).t(), "a").as_strided((3, 2), (1, 4)) @ WEIGHT[:2]


def several(x):
    return LAYER(noted(LAYER(noted(LAYER(x), "a")), "b"))


def without_blocks(x):
    return noted(x, "a") + torch.linalg.qr(x).Q.sum()


@pytest.mark.parametrize(
    "function",
    slow_from(4, [unread, writes, in_order, several, unread_random, returns_nothing, strided, without_blocks]),
    ids=lambda function: function.__name__,
)
def test_operators_run_once_a_call_in_order(function):
    run = torch.compile(function, backend=adapter.backend, options={"threads": 1, "check": False})
    for seed in (1, 2):
        outcomes = []
        for call in (function, run):
            calls.clear()
            torch.manual_seed(seed)
            x = torch.randn(4, 6)
            outcomes.append((call(x), list(calls), torch.get_rng_state()))
        (want, wanted_calls, wanted_state), (got, own_calls, own_state) = outcomes
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert own_calls == wanted_calls
        assert torch.equal(own_state, wanted_state)


LINEAR_ALGEBRA = {
    "inv": torch.linalg.inv,
    "solve": lambda x: torch.linalg.solve(x, x[:, :2]),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.t()),
    "twice": lambda x: torch.linalg.inv(torch.linalg.lu_factor(x)[0]),
}


@pytest.mark.parametrize("name", slow_from(1, LINEAR_ALGEBRA))
def test_linear_algebra_stays_with_pytorch_and_is_checked(name):
    """Between compiled blocks; a matrix that it cannot take is an error, as PyTorch says it."""

    def function(x):
        return torch.relu(LINEAR_ALGEBRA[name](LAYER(x) + 9 * x).t() @ WEIGHT)

    run = torch.compile(function, backend=adapter.backend, options={"threads": 1, "check": False})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for x in (torch.eye(6) + 0.01 * torch.randn(6, 6), 2 * torch.eye(6)):
            torch.testing.assert_close(run(x), function(x), rtol=1e-4, atol=1e-4)
    assert any("between 2 compiled blocks" in str(one.message) for one in told)
    with pytest.raises(RuntimeError, match="linalg"):
        run(torch.full((6, 6), torch.nan) if name == "cholesky" else -LAYER.bias.repeat(6, 1) / 9)


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "dropout1d": lambda x: F.dropout1d(x, 0.5),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(4, 6) + x,
    "randint": lambda x: torch.randint(0, 9, (4, 6)) + x,
    "normal_": lambda x: torch.empty_like(x).normal_() + x,
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 6),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0],
    "of a transposed": lambda x: F.dropout((x @ WEIGHT).t(), 0.5).t(),
}


def test_random_numbers_are_those_of_pytorch():
    """In the first call and the next, and the generator goes on as if they had been drawn once."""

    def function(x):
        drawn = []
        for operator in RANDOM.values():
            x = LAYER(x)
            drawn.append(operator(x).float())
        return (LAYER(x + sum(drawn)), *drawn)

    run = torch.compile(function, backend=adapter.backend, options={"threads": 1, "check": False})
    for seed in (1, 2):
        outcomes = []
        for call in (function, run):
            torch.manual_seed(seed)
            outcomes.append((call(torch.randn(4, 6)), torch.get_rng_state()))
        (want, wanted_state), (got, own_state) = outcomes
        for name, one, other in zip(["last", *RANDOM], got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=name)
        assert torch.equal(own_state, wanted_state)
