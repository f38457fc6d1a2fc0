"""``torch.compile(model, backend="anatune")``: outputs are PyTorch's, weights constants, what is left is said."""

import warnings
from pathlib import Path

import pytest

import anatune.adapters.torch as adapter
from anatune.errors import WorkloadError

torch = pytest.importorskip("torch")
tomllib = pytest.importorskip("tomllib")
pytest.importorskip("tvm")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Layers(torch.nn.Module):
    def __init__(self, between=lambda x: x):
        super().__init__()
        self.first, self.second, self.between = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), between

    def forward(self, x):
        return torch.relu(self.second(self.between(self.first(x))))


@pytest.fixture
def compiled(monkeypatch):
    """The models that were compiled, in order."""
    found, compile_model = [], adapter.session.compile

    def spy(*given, **settings):
        found.append(compile_model(*given, **settings))
        return found[-1]

    monkeypatch.setattr(adapter.session, "compile", spy)
    return found


def optimized(module, **options):
    return torch.compile(module, backend=adapter.backend, options={"threads": 1, **options})


def close(got, want):
    return (got - want).abs().max() <= 1e-5 * want.abs().max()


X = torch.linspace(-1, 1, 8 * 16).reshape(8, 16)


def test_weights_are_packed_once_and_calls_compile_nothing(compiled):
    module = Layers()
    run = optimized(module, strict=True)
    assert close(run(X), module(X))
    assert close(run(2 * X), module(2 * X))
    assert len(compiled) == 1
    assert len(compiled[0].summary.inputs) == 1


def test_two_modules_of_one_class_have_weights_of_their_own(compiled):
    first, second = Layers(), Layers()
    runs = [optimized(one, strict=True) for one in (first, second)]
    for run, module in zip([*runs, *runs], [first, second, first, second], strict=True):
        assert close(run(X), module(X))
    assert len(compiled) == 2


def test_weights_that_change_in_place_are_packed_again(compiled):
    module = Layers()
    run = optimized(module, strict=True)
    run(X)
    module.first.weight.mul_(3)
    assert close(run(X), module(X))
    assert len(compiled) == 2


def test_graph_breaks_make_two_models(compiled):
    def broken(x):
        torch._dynamo.graph_break()
        return x

    module = Layers(broken)
    assert close(optimized(module, strict=True)(X), module(X))
    assert [len(one.summary.kernels) for one in compiled] == [1, 1]


def test_an_operator_that_tvm_does_not_know_stays_with_pytorch_and_is_named_once(compiled):
    module = Layers(lambda x: torch.linalg.qr(x.T @ x).Q[:8])
    run = optimized(module)
    with pytest.warns(UserWarning, match=r"leaves a sub-graph to PyTorch \(linear, .*linalg_qr"):
        assert close(run(X), module(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(run(X), module(X))
    with pytest.raises(WorkloadError, match="linalg_qr"):
        optimized(module, strict=True)(X)
    assert not compiled


def test_writes_into_inputs_are_not_lost():
    module = Layers(lambda x: x)
    module.first = torch.nn.Identity()

    def write(x):
        x.add_(1)
        return module(x)

    given, expected = X.clone(), X + 1
    with pytest.warns(UserWarning, match="in place"):
        got = torch.compile(write, backend=adapter.backend, options={"threads": 1})(given)
    assert close(got, module(expected))
    assert torch.equal(given, expected)


def test_a_size_that_changes_stays_with_pytorch():
    module = Layers()
    run = optimized(module)
    run(X)
    with pytest.warns(UserWarning, match="dynamic=False"):
        assert close(run(X[:5]), module(X[:5]))


def test_gradients_stay_with_pytorch():
    module = Layers()
    with torch.enable_grad(), pytest.warns(UserWarning, match=r"torch\.no_grad"):
        optimized(module)(X).sum().backward()
    assert module.first.weight.grad is not None


def test_an_unknown_option_is_named():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="'thread', expected some of hw, threads"):
        optimized(Layers(), thread=1)(X)


def test_the_entry_point_names_the_backend():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    entry = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"]["anatune"]
    module, name = entry.split(":")
    assert (module, getattr(adapter, name)) == (adapter.__name__, adapter.backend)
