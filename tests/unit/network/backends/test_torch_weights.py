"""Weights of sub-graphs of PyTorch's compiler: a change of their contents is seen, whichever way it was made."""

import gc
import warnings

import numpy as np
import pytest

import anatune.network.backends.torch as adapter
from anatune.errors import SpaceError
from anatune.network.backends.torch_weights import WeightDigests, _device_digest, attribute_tensors, is_static
from tests.wording import refuses, warns

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def compiled(monkeypatch):
    """The models that were compiled, in order."""
    models, compile_model = [], adapter.session.compile

    def spy(*given, **settings):
        models.append(compile_model(*given, **settings))
        return models[-1]

    monkeypatch.setattr(adapter.session, "compile", spy)
    return models


SHARED = np.ones((5, 5), np.float32)
X = torch.linspace(-1, 1, 15).reshape(3, 5)


def optimized(module, **options):
    return torch.compile(module, backend=adapter.backend, options={"threads": 1, "check": False, **options})


def marked(module):
    """Return a module whose weights PyTorch's compiler takes for weights, though it has traced another one."""
    for tensor in (*module.parameters(), *module.buffers()):
        torch._dynamo.mark_static_address(tensor, guard=False)
    return module


def close(got, want):
    return bool((got - want).abs().max() <= 1e-5 * want.abs().max())


def replace(tensor, new):
    tensor.data = new


def in_inference_mode(tensor):
    with torch.inference_mode():
        tensor.data.mul_(3)


CHANGES = {
    "in place": lambda w: w.mul_(2),
    "data in place": lambda w: w.data.add_(1),
    "data of a row": lambda w: w.data[1].zero_(),
    "one element": lambda w: w.data.view(-1)[7].add_(1e-3),
    "signs": lambda w: w.data.neg_(),
    "rows change places": lambda w: w.data.copy_(w.data.flip(0)),
    "data replaced": lambda w: replace(w, torch.ones(5, 5)),
    "NumPy": lambda w: np.multiply(w.detach().numpy(), 3, out=w.detach().numpy()),
    "a view that was taken before": lambda w: w.data.t()[0].add_(1),
    "inference mode": in_inference_mode,
    "copied": lambda w: w.data.copy_(torch.eye(5)),
    "untyped storage": lambda w: w.untyped_storage().copy_(torch.zeros(5, 5).untyped_storage()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_digests_are_of_contents(dtype):
    """Of each kind of tensor: dense, transposed, with gaps, expanded, without elements, of one element, unaligned."""
    digests = WeightDigests(torch)
    memory = torch.arange(200).remainder(7).to(dtype)
    whole = memory.reshape(10, 20)
    tensors = [
        whole, whole.t(), whole[:, 3:8], whole[0].expand(4, 20), whole[:0], memory[5].reshape(()), memory[1:40],
        memory[::3], torch.nn.Parameter(whole.clone(), requires_grad=False),
    ]  # fmt: skip
    for tensor in tensors:
        first = digests.digest([tensor])
        assert first == digests.digest([tensor])
        if not tensor.numel():
            continue
        element = tensor.data[(-1,) * tensor.dim()]
        before = element.clone()
        element.copy_(before.logical_not() if dtype == torch.bool else before + 1)
        assert digests.digest([tensor]) != first
        element.copy_(before)
        assert digests.digest([tensor]) == first


def test_digests_are_of_all_tensors_in_order():
    digests, first, second = WeightDigests(torch), torch.zeros(3, 5), torch.ones(3, 5)
    seen = {digests.digest(tensors) for tensors in ([], [first], [second], [first, second], [second, first])}
    assert len(seen) == 5
    assert digests.digest([first.clone(), second.clone()]) == digests.digest([first, second])


def test_memory_that_is_not_read_does_not_count():
    digests, memory = WeightDigests(torch), torch.zeros(4, 8)
    first = digests.digest([memory[:, :4]])
    memory[:, 4:] = 1
    assert digests.digest([memory[:, :4]]) == first


def test_digests_go_down_to_the_tensors_of_subclasses():
    class Pair(torch.Tensor):
        @staticmethod
        def __new__(cls, number):
            return torch.Tensor._make_wrapper_subclass(cls, number.shape, dtype=number.dtype)

        def __init__(self, number):
            self.number = number

        def __tensor_flatten__(self):
            return ["number"], None

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise NotImplementedError

    pair, digests = Pair(torch.zeros(4)), WeightDigests(torch)
    first = digests.digest([pair])
    pair.number.add_(1)
    assert digests.digest([pair]) not in (first, WeightDigests(torch).digest([]))


@pytest.mark.parametrize("count", [0, 1, 8, 1001])
def test_digests_of_a_gpu(count):
    """What a GPU would compute, on the CPU."""
    data = torch.arange(count).remainder(251).to(torch.uint8)
    first = bytes(_device_digest(torch, data))
    assert first == bytes(_device_digest(torch, data.clone()))
    for place in range(0, count, 17):
        data[place] ^= 128
        assert bytes(_device_digest(torch, data)) != first
        data[place] ^= 128
    if count > 1:
        assert bytes(_device_digest(torch, data.flip(0))) != first


@pytest.mark.parametrize("names", [tuple(CHANGES)[:6], tuple(CHANGES)[6:]], ids=["first", "rest"])
def test_every_change_of_a_weight_is_seen(names, compiled):
    module = torch.nn.Linear(5, 5)
    run = optimized(module, strict=True)
    run(X)
    for name in names:
        before = module.weight.detach().clone()
        CHANGES[name](module.weight)
        assert not torch.equal(before, module.weight), name
        assert close(run(X), module(X)), name
    assert len(compiled) == 1 + len(names)
    module.weight.data.copy_(before)  # a model of these contents is there
    assert close(run(X), module(X))
    assert len(compiled) == 1 + len(names)


class Several(torch.nn.Module):
    """Weights of all kinds: tied, a view of another, a buffer, a plain attribute, one of memory that is NumPy's."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, 5))
        self.tied, self.view = self.weight, torch.nn.Parameter(self.weight.data[1:3])
        self.register_buffer("scale", torch.rand(5))
        self.shared = torch.nn.Parameter(torch.from_numpy(SHARED.copy()))
        self.attribute = torch.rand(5)
        self.listed = torch.nn.ParameterList([torch.rand(5)])

    def forward(self, x):
        both = (x @ self.weight) * self.scale + x @ self.tied.t() + self.listed[0]
        return (both + self.attribute) @ self.view.t() @ self.view @ self.shared


@pytest.mark.slow
def test_weights_of_every_kind_are_checked():
    module = Several()
    run = optimized(module, strict=True)
    run(X)
    for tensor in (module.scale, module.view, module.attribute, module.shared, module.listed[0], module.weight):
        tensor.data.mul_(1.5)
        assert close(run(X), module(X))


def test_equal_contents_share_a_model(compiled):
    first, second = marked(torch.nn.Linear(5, 5)), marked(torch.nn.Linear(5, 5))
    second.load_state_dict(first.state_dict())
    runs = [optimized(first, strict=True), optimized(second, strict=True)]
    for run in runs:
        assert close(run(X), first(X))
    assert len(compiled) == 1
    first.weight = torch.nn.Parameter(first.weight.detach().clone())
    marked(first)
    assert close(runs[0](X), first(X))
    assert len(compiled) == 1
    second.weight.data.mul_(2)
    for run, module in zip(runs, (first, second), strict=True):
        assert close(run(X), module(X))
    assert len(compiled) == 2


@pytest.mark.slow
def test_weights_that_were_freed_are_not_taken_for_new_ones(compiled):
    def apply(x, module):
        return module(x)

    run = torch.compile(apply, backend=adapter.backend, options={"threads": 1, "check": False, "strict": True})
    for _ in range(3):
        module = marked(torch.nn.Linear(5, 5))
        assert close(run(X, module), module(X))
        del module
        gc.collect()
    assert len(compiled) == 3


@pytest.mark.slow
def test_a_weight_that_comes_as_an_input_is_one():
    def apply(x, weight):
        return x @ weight

    module = torch.nn.Linear(5, 5)
    optimized(module)(X)
    run = optimized(apply, strict=True)
    for weight in (module.weight, torch.randn(5, 5), torch.nn.Parameter(torch.randn(5, 5)), module.weight):
        assert close(run(X, weight), apply(X, weight))


@pytest.mark.slow
def test_a_sub_graph_stays_with_pytorch_when_its_weights_never_stay_as_they_are(compiled):
    module = torch.nn.Linear(5, 5)
    run = optimized(module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(11):
            module.weight.data.mul_(0.9)
            assert close(run(X), module(X))
    assert len(compiled) == 8
    assert ["8 sets of weights" in str(one.message) for one in caught if "anatune" in str(one.message)] == [True]


def test_operators_that_stay_with_pytorch_read_weights_as_they_are():
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 5))

        def forward(self, x):
            return x @ self.weight + torch.linalg.qr(self.weight).Q[:1]

    module = Mixed()
    run = optimized(module)
    with warns(UserWarning):
        run(X)
    old = module.weight.data
    module.weight.data = old.clone()  # equal contents: the model stays
    run(X)
    old.zero_()
    assert close(run(X), module(X))


def test_frozen_weights_are_not_read(compiled, monkeypatch):
    module = torch.nn.Linear(5, 5)
    run = optimized(module, strict=True, weights="frozen")
    monkeypatch.setattr(WeightDigests, "digest", None)
    run(X)
    before = module(X)
    module.weight.data.view(-1)[0].add_(0)
    assert close(run(X), before)
    module.weight.mul_(2)  # PyTorch counts it
    assert close(run(X), module(X))
    module.weight.data = torch.ones(5, 5)  # it lies elsewhere
    assert close(run(X), module(X))
    assert len(compiled) == 3


def test_another_word_for_weights_is_refused():
    with refuses(SpaceError):
        adapter.backend(torch.fx.symbolic_trace(torch.nn.Linear(2, 2)), [], options={"weights": "thawed"})


def test_tensors_that_a_graph_has_itself():
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.plain = torch.nn.Linear(2, 2), torch.ones(2)

        def forward(self, x):
            return self.layer(x) + self.plain

    traced = torch.fx.symbolic_trace(Holder())
    held = attribute_tensors(torch, traced)
    assert {tuple(tensor.shape) for tensor in held} == {(2, 2), (2,)}
    assert len(held) == 3
    assert not any(map(is_static, held))
