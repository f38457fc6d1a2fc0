"""``torch.compile(model, backend="anatune")``: outputs are PyTorch's, weights constants, what is left is said."""

import warnings
from importlib import import_module
from pathlib import Path

import pytest

import anatune.network.backends.torch as adapter
from anatune.errors import WorkloadError
from tests.concurrency import at_once
from tests.wording import refuses, warns

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


@pytest.mark.slow
def test_sub_graphs_are_compiled_in_one_thread_at_a_time(monkeypatch):
    working, most = [], []

    def export(*given):
        working.append(1)
        most.append(len(working))
        program = exported(*given)
        working.pop()
        return program

    def keep(graph, examples):
        run = adapter.backend(graph, examples, options={"threads": 1, "strict": True})
        return lambda *given: calls.append((run, given)) or graph(*given)

    exported, calls = adapter.export_module, []
    monkeypatch.setattr(adapter, "export_module", export)
    modules = [Layers(torch.tanh), Layers(torch.sigmoid), Layers(torch.relu)]
    for module in modules:
        torch.compile(module, backend=keep)(X)

    def work(number):
        run, given = calls[number]
        with torch.no_grad():
            return close(run(*given)[0], modules[number](X))

    assert all(at_once(work, 3))
    assert most == [1, 1, 1]


def test_graph_breaks_make_two_models(compiled):
    def broken(x):
        torch._dynamo.graph_break()
        return x

    module = Layers(broken)
    assert close(optimized(module, strict=True)(X), module(X))
    assert [len(one.summary.kernels) for one in compiled] == [1, 1]


def turned(x):
    """Return as many values by an operator that cannot be imported."""
    return torch.linalg.qr(x.T @ x).Q[:8]


@pytest.mark.slow
def test_an_operator_that_tvm_does_not_know_stays_with_pytorch_and_is_named_once(compiled):
    module = Layers(turned)
    run = optimized(module)
    with warns(UserWarning) as caught:
        assert close(run(X), module(X))
    assert len([one for one in caught if "anatune" in str(one.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(run(2 * X), module(2 * X))
    assert [len(one.summary.kernels) for one in compiled] == [2, 1]
    assert [len(one.summary.inputs) for one in compiled] == [1, 1]
    with refuses(WorkloadError):
        optimized(module, strict=True)(X)


def test_each_set_of_weights_has_blocks_of_its_own(compiled):
    first, second = Layers(turned), Layers(turned)
    with warns(UserWarning):
        assert close(optimized(first)(X), first(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(optimized(second)(X), second(X))
        assert close(optimized(first)(X), first(X))
    assert len(compiled) == 4


def test_weights_that_pytorch_reads_beside_blocks(compiled):
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(16, 16))

        def forward(self, x):
            return x @ self.weight + torch.linalg.qr(self.weight).Q[:1]

    module = Shared()
    with warns(UserWarning):
        assert close(optimized(module)(X), module(X))


def test_dtypes_that_cannot_be_imported_stay_with_pytorch(compiled):
    module = Layers(lambda x: torch.fft.ifft(torch.fft.fft(x) * 2).real)
    with warns(UserWarning):
        assert close(optimized(module)(X), module(X))
    assert len(compiled) == 2


def test_small_blocks_stay_with_pytorch(compiled):
    module = Layers(turned)
    with warns(UserWarning):
        assert close(optimized(module, min_block_size=100)(X), module(X))
    assert not compiled


def test_a_block_that_cannot_be_compiled_stays_with_pytorch(compiled, monkeypatch):
    compile_model, calls = adapter.session.compile, []

    def second_fails(*given, **settings):
        calls.append(given)
        if len(calls) == 2:
            raise WorkloadError("this one is too hard")
        return compile_model(*given, **settings)

    monkeypatch.setattr(adapter.session, "compile", second_fails)
    module = Layers(turned)
    with warns(UserWarning):
        assert close(optimized(module)(X), module(X))


def test_writes_into_inputs_are_not_lost():
    module = Layers(lambda x: x)
    module.first = torch.nn.Identity()

    def write(x):
        x.add_(1)
        return module(x)

    given, expected = X.clone(), X + 1
    with warns(UserWarning):
        got = torch.compile(write, backend=adapter.backend, options={"threads": 1})(given)
    assert close(got, module(expected))
    assert torch.equal(given, expected)


@pytest.mark.slow
def test_a_size_that_changes_is_compiled_for_a_range():
    module = Layers()
    run = optimized(module, strict=True)
    run(X)
    for rows in (5, 3, 2, 4):
        assert close(run(X[:rows]), module(X[:rows]))


class Normed(torch.nn.Module):
    """A layer with a number, which PyTorch hands as a tensor where sizes are dynamic."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8, eps=1e-3)

    def forward(self, x):
        rows, length, _ = x.shape
        return self.norm(self.layer(x)).reshape(rows * length, 8)


def test_dynamic_sizes_share_a_model():
    module = Normed().eval()
    run = torch.compile(module, backend="anatune", dynamic=True, options={"threads": 1, "strict": True})
    with torch.no_grad():
        for shape in ((2, 7, 8), (3, 5, 8), (9, 2, 8)):
            x = torch.randn(*shape)
            assert close(run(x), module(x))


def test_gradients_stay_with_pytorch():
    module = Layers()
    with torch.enable_grad(), warns(UserWarning):
        optimized(module)(X).sum().backward()
    assert module.first.weight.grad is not None


def test_an_unknown_option_is_named():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"'thread'.* hw, threads"):
        optimized(Layers(), thread=1)(X)


def test_the_entry_point_names_the_backend():
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    entry = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"]["anatune"]
    module, name = entry.split(":")
    assert module == "anatune.adapters.torch"
    assert getattr(import_module(module), name) is adapter.backend


@pytest.mark.parametrize("vendor", ["cuda", "hip"])
def test_tensors_on_a_gpu_are_compiled_for_it(monkeypatch, vendor):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(torch.version, vendor, "7.2")
    graph = torch.fx.symbolic_trace(torch.nn.Linear(8, 4))
    with FakeTensorMode():
        half, single = (torch.empty(2, 8, device="cuda", dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    run = adapter.backend(graph, [], options={"strict": True}).__self__
    assert run._allowed_devices([half]) == ("cpu", "cuda")
    assert run._settings == {"hw": "host_gpu", "precision": "bfloat16"}
    other = adapter.backend(graph, [], options={"strict": True}).__self__
    with refuses(WorkloadError):
        other._allowed_devices([single])
    named = adapter.backend(graph, [], options={"precision": "float16"}).__self__
    assert named._allowed_devices([single]) == ("cpu", "cuda")
    assert named._settings["precision"] == "float16"
    monkeypatch.setattr(torch.version, vendor, None)
    assert named._allowed_devices([single]) == ("cpu",)
