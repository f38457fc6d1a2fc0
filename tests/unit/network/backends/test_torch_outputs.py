"""Outputs of sub-graphs of PyTorch's compiler: values, strides, shared memory and writes are those of eager runs.

Programs are drawn; what computes them is a sub-graph's pieces by PyTorch, which takes milliseconds, or anatune.
"""

import itertools
import random
import warnings

import pytest

from anatune.errors import WorkloadError
from tests.tiers import slow_from
from tests.wording import refuses

torch = pytest.importorskip("torch")
outputs_module = pytest.importorskip("anatune.network.backends.torch_outputs")
F = torch.nn.functional


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


VIEWS = (
    "{a}.t()", "{a}[1:]", "{a}[:, 1:3]", "{a}.view(-1)", "{a}.unsqueeze(0)", "{a}[0]", "{a}.select(-1, 1)",
    "{a}.transpose(-1, 0)", "{a}.expand(2, *{a}.shape)", "{a}.diagonal()", "{a}.as_strided((2, 2), (1, 2))",
    "{a}.detach()", "{a}.data", "{a}.reshape(-1)", "{a}.contiguous()", "{a}.view_as({a})", "{a}.chunk(2, 0)[0]",
    "{a}.unbind(0)[0]", "{a}.split(1)[-1]", "{a}.flatten()", "{a}.squeeze()", "{a}.movedim(0, -1)", "{a}.float()",
    "{a}.view(torch.int32)", "{a}.unfold(0, 2, 1)", "{a}[None]", "{a}[..., ::2]", "F.dropout({a}, 0.5, False)",
    "torch.broadcast_to({a}, (3, *{a}.shape))", "{a}[:0]",
)  # fmt: skip
COPIES = (
    "{a} + 1", "{a}.clone()", "torch.relu({a})", "torch.cat([{a}, {a}])", "{a}.sum(0)", "{a}.t().contiguous()",
    "torch.flip({a}, [0])", "{a}.new_ones(3)", "{a}.sum()", "torch.empty_like({a}).copy_({a})", "torch.topk({a}, 1)[0]",
    "{a}.double()", "({a} > 0)", "{a}.argmax(0)", "{a} @ w", "({a} @ w).t()", "m({a})",
)  # fmt: skip
WRITES = (
    "{a}.add_(1)", "{a}.mul_(2)", "{a}.zero_()", "{a}[0] = 3.0", "{a}.copy_({a} * 2)", "{a}.t_()", "{a}.unsqueeze_(0)",
    "torch.relu_({a})", "torch.add({a}, 1, out={a})", "{a}.transpose_(0, -1)", "{a}[:, 0] += 1",
)  # fmt: skip


def drawn(seed):
    """Return the source of a function of three tensors."""
    draw = random.Random(seed)
    has_breaks, writes_inputs = draw.random() < 0.5, draw.random() < 0.3
    names, results = ["x", "y", "z"], ["a0"]
    lines = [f"a0 = {draw.choice(COPIES[-3:]).format(a=draw.choice(['x', 'z']))}"]
    for number in range(1, draw.randint(2, 7)):
        kind = draw.random()
        operand = draw.choice(names + results) if draw.random() < 0.5 else draw.choice(results)
        if kind < 0.75:
            expression = draw.choice(VIEWS if kind < 0.5 else COPIES)
            lines.append(f"a{number} = {expression.format(a=operand)}")
            results.append(f"a{number}")
        elif kind < 0.9:
            operand = operand if writes_inputs else draw.choice(results)
            lines.append(draw.choice(WRITES).format(a=operand))
        elif has_breaks:
            lines.append("torch._dynamo.graph_break()")
    returned = draw.choices(results, k=draw.randint(1, 4)) + draw.choices([*names, "None", "x.shape[0] + 1"], k=1)
    return "".join(f"    {line}\n" for line in [*lines, f"return ({', '.join(returned)},)"])


def function(body):
    generator = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(6, 6, generator=generator), torch.randn(6, generator=generator)
    values = {"torch": torch, "F": F, "w": weight, "m": lambda x: F.linear(x, weight, bias)}
    exec(compile(f"def f(x, y, z):\n{body}", f"<drawn {hash(body)}>", "exec"), values)
    return values["f"]


def arguments(seed, kind):
    """Return tensors: apart, views of each other, parts of one memory, one twice, without dimensions."""
    generator = torch.Generator().manual_seed(seed)
    x, large = torch.randn(4, 6, generator=generator), torch.randn(9, 6, generator=generator)
    return [
        (x, large[:4], torch.randn(6, 6, generator=generator).t()),
        (x, x.t(), large[2:6]),
        (large[1:5], large[2:6], torch.randn(4, 8, generator=generator)[:, 1:7]),
        (x, x, torch.randn(4, 6, generator=generator)),
        (x, torch.tensor(2.0), large[5:]),
    ][kind]


def layouts(values):
    return [
        (value.dtype, value.shape, value.stride(), value.requires_grad) if isinstance(value, torch.Tensor) else value
        for value in values
    ]


def relations(values):
    """Return which tensors are one object, and how far apart tensors begin that share memory."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    shared = []
    for first, second in itertools.combinations(tensors, 2):
        is_shared = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        has_elements = first.numel() and second.numel()
        shared.append((first is second, first.data_ptr() - second.data_ptr() if is_shared and has_elements else None))
    return shared


def assert_equal(got, want):
    for one, other in zip(got, want, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
        else:
            assert one == other


def write(values):
    """Write into tensors, one after the other."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and 0 not in value.stride():
            try:
                value.mul_(2)
            except RuntimeError:
                assert "single memory location"


def compare(run, plain, seed, kind):
    """Compare a call with PyTorch's: before and after writes into what it returned; whether PyTorch can run it."""
    given, others = arguments(seed, kind), arguments(seed, kind)
    try:
        want = plain(*others)
    except (RuntimeError, IndexError, TypeError):
        return None
    got = run(*given)
    assert layouts(got) == layouts(want)
    assert_equal([*got, *given], [*want, *others])
    assert relations([*got, *given]) == relations([*want, *others])
    write(got)
    write(want)
    assert_equal([*got, *given], [*want, *others])
    return got


def compare_calls(body, backend, kinds, **settings):
    """Compare several calls; what the first returned is not overwritten."""
    plain = function(body)
    run = torch.compile(plain, backend=backend, **settings)
    first = compare(run, plain, 1, kinds[0])
    if first is None:
        return
    kept = [value.clone() if isinstance(value, torch.Tensor) else value for value in first]
    for seed, kind in enumerate(kinds, 2):
        compare(run, plain, seed, kind)
    assert_equal(first, kept)


def by_pieces(graph, _):
    """Return what computes a sub-graph from its pieces, without anatune."""
    try:
        outputs = outputs_module.SubGraphOutputs(torch, graph)
    except WorkloadError:
        return graph.forward

    def run(*given):
        pieces = [piece.clone(memory_format=torch.contiguous_format) for piece in outputs.module(*given)]
        return outputs.restore(given, pieces)

    return run


@pytest.mark.parametrize("begin", slow_from(1, range(0, 40, 10)))
def test_outputs_lie_as_pytorchs(begin):
    for seed in range(begin, begin + 10):
        torch._dynamo.reset()
        kind = random.Random(seed).choice([0, 0, 1, 2, 3, 4])
        compare_calls(drawn(seed), by_pieces, [kind, kind, (kind + 2) % 5], dynamic=seed % 2 == 1 or None)


@pytest.mark.parametrize("seed", [3, 8])
def test_compiled_outputs_lie_as_pytorchs(seed):
    pytest.importorskip("tvm")
    from anatune.network.backends.torch import backend

    compare_calls(drawn(seed), backend, [0, 2], options={"threads": 1, "check": False})


def analysed(body, kind=0, **settings):
    """Return the analyses of a function's sub-graphs; an error for what stays with PyTorch."""
    found = []

    def note(graph, _):
        try:
            found.append(outputs_module.SubGraphOutputs(torch, graph))
        except WorkloadError as error:
            found.append(error)
        return graph.forward

    torch.compile(function(body), backend=note, **settings)(*arguments(0, kind))
    return found


STAYS = {
    "x.add_(1)\n    return x @ w": "add_ writes into an argument in place",
    "y[0] = 1\n    return x @ w": "setitem writes into an argument in place",
    "y += 1\n    return x @ w": "iadd writes into an argument in place",
    "x.t()[1:].zero_()\n    return x @ w": "zero_ writes into an argument in place",
    "return x.t(), y": "returns no tensor that it computes",
    "return x @ w, x.view(torch.int32)": "a view, of torch.int32, of an argument of torch.float32",
    "return (x @ w)[x[:, 0] > 0]": "depends on values",
    "return torch.fft.fft(x @ w).conj()": "expected a dense, real one",
}


@pytest.mark.parametrize("body", STAYS)
def test_what_stays_with_pytorch_is_said(body):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (found, *_) = analysed(f"    {body}\n")
    assert isinstance(found, WorkloadError)
    assert STAYS[body] in str(found)


def test_gradients_that_are_asked_for_inside_stay_with_pytorch():
    weight = torch.nn.Parameter(torch.randn(6, 6))

    def run(x):
        with torch.enable_grad():
            return x @ weight

    def backend(graph, _):
        with refuses(WorkloadError):
            outputs_module.SubGraphOutputs(torch, graph)
        return graph.forward

    assert torch.compile(run, backend=backend)(torch.randn(4, 6)).requires_grad


def test_views_of_arguments_that_share_memory_stay_with_pytorch():
    (found,) = analysed("    return x @ w, y.t()\n", kind=2)
    assert "arguments that share memory" in str(found)
    (found,) = analysed("    return x @ w, z.t()\n", kind=2)
    assert isinstance(found, outputs_module.SubGraphOutputs)


def test_a_piece_is_returned_once_and_in_the_order_in_which_it_lies():
    (found,) = analysed("    a = x @ w\n    b = (z @ w).t()\n    return b[1:], a, a.view(-1), b, a[:, 2]\n")
    x, _, z = arguments(0, 0)
    pieces = found.module(x, function("    return w\n")(0, 0, 0), z)
    assert [tuple(piece.shape) for piece in pieces] == [(6, 6), (4, 6)]
    assert all(piece.is_contiguous() for piece in pieces)


def test_a_convolution_of_channels_last_is_one():
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    layer = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last).eval()

    def run(x):
        y = layer(x)
        torch._dynamo.graph_break()
        return y, y.permute(0, 2, 3, 1).view(2, -1)

    got = torch.compile(run, backend=by_pieces)(x)
    assert layouts(got) == layouts(run(x))
    assert relations(got) == [(False, 0)]


def test_data_of_a_tensor_can_be_exported():
    """PyTorch's export ends the process at what `.data` becomes."""
    (found,) = analysed("    return (x @ w).data\n")
    names = [getattr(node.target, "__name__", node.target) for node in found.module.graph.nodes]
    assert "detach" in names
    assert "_get_data_attr" not in names
