"""Operators of PyTorch's with several forms of arguments each, a family compiled at once, beside PyTorch itself."""

import warnings

import numpy as np
import pytest

from anatune.network.compiling.session import compile as compile_model

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
functional = torch.nn.functional
random = torch.Generator().manual_seed(0)


def r(*shape):
    return torch.randn(*shape, generator=random)


def i(*shape, low=-5, high=6, dtype=torch.int64):
    return torch.randint(low, high, shape, generator=random, dtype=dtype)


def b(*shape):
    return r(*shape) > 0


X, Y, W = r(2, 3, 4), r(3, 1), i(3, 4)
HIGH = W.abs() + 1
ELEMENTS = [
    (torch.add, X, Y),
    (lambda a, c: torch.sub(a, c, alpha=2.5), W, Y),
    (lambda a: 3 - a, W),
    (torch.add, b(3), b(3)),
    (torch.mul, b(3), b(3)),
    (torch.div, W, HIGH),
    (lambda a: torch.div(a, -3, rounding_mode="floor"), W),
    (lambda a: torch.div(a, -3, rounding_mode="trunc"), W),
    (lambda a: torch.div(a, 0.7, rounding_mode="floor"), X),
    (torch.remainder, W, HIGH),
    (torch.fmod, X, Y),
    (torch.log, HIGH),
    (torch.sqrt, HIGH),
    (torch.floor, W),
    (torch.isnan, W),
    (torch.logical_not, X.round()),
    (lambda a: a == 1.5, W),
    (torch.lt, b(3), b(3)),
    (lambda a: a.clamp(-0.5, 2.5), W),
    (torch.clamp, X, Y - 1, Y + 1),
    (lambda a: a**2.5, X.abs()),
    (lambda a: a**3, W),
    (lambda a: torch.pow(2, a), HIGH),
    (torch.pow, W, HIGH % 4),
    (lambda c, a: torch.where(c, a, 0.0), b(3, 4), W),
    (torch.atan2, X, Y),
    (torch.hypot, X, Y),
    (torch.round, X),
    (functional.celu, X),
    (functional.selu, X),
    (lambda a: functional.leaky_relu(a, 1.5), X),
    (functional.softplus, X),
    (functional.hardshrink, X),
    (lambda a: a.to(torch.int32), X * 3),
    (lambda a: a.bool(), X),
    (lambda a: a + torch.arange(0.5, 8.5, 2.0), X),
    (lambda a: torch.triu(a, 1), X),
    (lambda a: a.masked_fill(a > 0, -torch.inf), X),
    (torch.bitwise_xor, W, HIGH),
]
# fmt: off
REDUCTIONS = [
    (torch.sum, W.int()),
    (lambda a: a.sum((0, 2)), b(2, 3, 4)),
    (lambda a: a.mean(1, keepdim=True), X),
    (lambda a: a.prod(1), W),
    (lambda a: a.amax((0, 1)), X),
    (lambda a: a.amin(-1), W),
    (lambda a: a.any(1), W),
    (lambda a: a.all(1, keepdim=True), b(3, 4)),
    (lambda a: a.max(1), X),
    (torch.argmin, X),
    (torch.argmax, X, 1),
    (lambda a: a.var(1), X),
    (lambda a: a.std((0, 2), correction=0), X),
    (lambda a: torch.var_mean(a, -1), X),
    (lambda a: torch.logsumexp(a, 1), X),
    (lambda a: a.softmax(1), X),
    (lambda a: a.log_softmax(0), X),
    (lambda a: a.cumsum(1), b(3, 4)),
    (lambda a: a.cumprod(-1), W.int()),
    (lambda a: a.sort(1, descending=True), X),
    (lambda a: a.topk(2), X),
    (lambda a: a.kthvalue(2), X),
    (lambda a: a.median(1), X),
    (torch.cdist, r(2, 3), r(4, 3)),
    (lambda a: torch.bucketize(a, torch.tensor([-1.0, 0.0, 1.0])), X),
    (lambda a: torch.histc(a, 4, -2, 2), r(20)),
    (lambda a: torch.linalg.vector_norm(a, 3, 1), X),
    *(
        (lambda a, p=p: torch.linalg.vector_norm(a, p, 1), torch.tensor([[1e-30], [3e28], [-3.0]]))
        for p in (2, 3, 0.5, 0)
    ),
    (lambda a: functional.pairwise_distance(a, -a), torch.tensor([[3e28], [-3.0]])),
    (lambda a: functional.layer_norm(a, (3, 4)), X),
    (lambda a: functional.group_norm(a, 2, torch.arange(4.0)), r(2, 4, 5)),
    (functional.instance_norm, r(2, 3, 4)),
    *((norm, r(2, 4, 5).double()) for norm in (
        functional.instance_norm, lambda a: functional.group_norm(a, 2, torch.arange(4.0).double()),
        lambda a: functional.layer_norm(a, (4, 5)),
    )),
    *((reduction, given) for given in (r(2, 0, 3), b(2, 0, 3)) for reduction in (
        lambda a: a.any(1), lambda a: a.all(1), torch.any, torch.all, lambda a: a.prod(1), lambda a: a.sum(1),
    )),
    *((reduction, r(2, 0, 3)) for reduction in (
        lambda a: a.mean(1), lambda a: a.var(1), lambda a: a.logsumexp(1), lambda a: torch.linalg.vector_norm(a, dim=1),
    )),
    (lambda a: functional.rms_norm(a, (4,)), X),
    (lambda a: functional.batch_norm(a, torch.ones(3), HIGH[0, :3] * 1.0), r(2, 3)),
]
# fmt: on
SHAPES = [
    (lambda a: a[..., 1:4:2], r(2, 5)),
    (lambda a: a[-2:, -1], r(3, 5)),
    (lambda a: a.flip(0, 2), X),
    (lambda a: a.roll((1, -2), (0, 2)), X),
    (lambda a: a.roll(2), r(2, 5)),
    (lambda a: a.repeat(2, 1, 3), r(2, 3)),
    (lambda a: a.repeat_interleave(2, 1), X),
    (lambda a, c: torch.cat([torch.tensor([]), a, c], 1), r(2, 3), i(2, 4)),
    (lambda a: a.split([1, 0, 4], 1), r(2, 5)),
    (lambda a: a.diagonal(1), r(4, 5)),
    (lambda a: a.unfold(1, 3, 2), r(2, 8)),
    (lambda a: a.as_strided((3, 2), (1, 3), 1), r(10)),
    (lambda a, c: a.slice_scatter(c, 1, 0, 5, 2), r(2, 5), r(2, 3)),
    (lambda a, c: a.select_scatter(c, 1, -1), r(2, 4), r(2)),
    (lambda a: functional.pad(a, (1, -1, 2, 1), value=2.5), X),
    (lambda a: functional.pad(a, (1, 2, 2, 1), "reflect"), r(1, 2, 5, 4)),
    (lambda a: functional.pad(a, (1, 2), "replicate"), X),
    (lambda a: functional.pixel_shuffle(a, 2), r(1, 8, 3, 3)),
    (lambda a: functional.unfold(a, 3, stride=2), r(1, 2, 7, 6)),
    (lambda a: functional.fold(a, (5, 6), 3, padding=1, stride=2), r(1, 18, 9)),
    (lambda a: a.expand(2, -1, 4), Y),
]
PLACES, TURNED, TWICE = torch.tensor([0, 2, 1]), torch.tensor([-1, 0, -2]), torch.tensor([[0, 0], [1, 3], [3, 0]])
INDICES = [
    (lambda a, n: a[n], r(3, 4), TURNED),
    (lambda a, n, m: a[n, m], r(3, 4), PLACES, TURNED),
    (lambda a, n: a[n, :, n], r(3, 2, 4), PLACES),
    (lambda a, n: a[:, n[:, None], n], r(2, 3, 4), PLACES),
    (lambda a: a[torch.tensor([-1, 0])], r(3, 4)),
    (lambda a, n: a.gather(1, n), r(4, 5), TWICE),
    (lambda a, n: a.index_select(1, n), r(2, 3), PLACES),
    (lambda a, n: functional.embedding(n, a), r(4, 3), TWICE),
    (lambda a, n, v: a.index_put((n,), v), r(3, 4), TURNED, r(3, 4)),
    (lambda a, n, v: a.index_put((PLACES[:, None], n), v, accumulate=True), r(3, 4), torch.tensor([0, 0]), r(3, 2)),
    (lambda a, c: a.index_put((c,), torch.tensor(5.0)), r(3, 4), b(3)),
    (lambda a, n: a.scatter(1, n, 1.5), r(3, 4), TWICE),
    (lambda a, n, v: a.scatter_add(1, n, v), r(3, 4), TWICE, r(3, 4)),
    *(
        (lambda a, n, v, word=word: a.scatter_reduce(1, n, v, word, include_self=False), r(3, 4), TWICE, r(3, 2))
        for word in ("amax", "mean")
    ),
    (lambda a, c, v: a.masked_scatter(c, v), r(3, 4), b(3, 4), r(3, 4)),
    (lambda a, n, v: a.index_add(0, n, v), r(3, 4), PLACES, r(3, 4)),
    *(
        (
            lambda a, n, o, mode=mode: functional.embedding_bag(n, a, o, mode=mode),
            r(4, 3),
            i(5, low=0, high=4),
            torch.tensor([0, 2, 2]),
        )
        for mode in ("sum", "mean", "max")
    ),
]
IMAGE = r(1, 2, 7, 6)
WINDOWS = [
    (lambda a, m, n: torch.addmm(a, m, n, beta=0.5, alpha=2), r(5), r(3, 4), r(4, 5)),
    (torch.matmul, r(2, 1, 3, 4), r(3, 4, 5)),
    (torch.einsum, "bij,bkj->bik", r(2, 3, 4), r(2, 5, 4)),
    (torch.matmul, W, W.T),
    (lambda a, w: functional.conv2d(a, w, padding=1, dilation=2, stride=2), IMAGE, r(3, 2, 3, 3)),
    (
        lambda a, w, c: functional.conv_transpose2d(
            a, w, c, stride=3, padding=2, output_padding=1, dilation=2, groups=2
        ),
        IMAGE,
        r(2, 2, 3, 3),
        r(4),
    ),
    (lambda a, w: functional.conv_transpose1d(a, w, padding=3), r(1, 2, 6), r(2, 3, 3)),
    (lambda a: functional.avg_pool2d(a, 3, 2, 1, ceil_mode=True), IMAGE),
    (lambda a: functional.avg_pool2d(a, 2, ceil_mode=True, divisor_override=3), IMAGE),
    (lambda a: functional.max_pool2d(a, 3, 2, 1, return_indices=True), IMAGE),
    (lambda a: functional.adaptive_avg_pool2d(a, (3, 4)), IMAGE),
    (lambda a: functional.adaptive_max_pool2d(a, (3, 4), return_indices=True), IMAGE),
    *(
        (lambda a, mode=mode: functional.interpolate(a, scale_factor=1.7, mode=mode), IMAGE)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    ),
    (lambda a: functional.interpolate(a, size=(5, 9), mode="bilinear", align_corners=True), IMAGE),
    (lambda a: functional.interpolate(a, size=(3, 4), mode="bicubic", antialias=True), IMAGE),
    (lambda a: functional.interpolate(a, size=(9, 4), mode="bilinear", antialias=True, align_corners=True), IMAGE),
    (lambda a, g: functional.grid_sample(a, g, align_corners=False), IMAGE, r(1, 3, 2, 2)),
    (
        lambda a, g: functional.grid_sample(a, g, mode="bicubic", padding_mode="border", align_corners=False),
        IMAGE,
        r(1, 3, 2, 2),
    ),
    (lambda a, g: functional.grid_sample(a[:, :, None], g, align_corners=True), IMAGE, r(1, 2, 3, 2, 3)),
    (lambda q, m: functional.scaled_dot_product_attention(q, q, q, attn_mask=m), r(1, 2, 4, 3), b(4, 4)),
    (torch.nn.LSTM(4, 3, bidirectional=True), r(2, 1, 4)),
    (torch.nn.GRU(4, 3), r(2, 1, 4)),
]
FAMILIES = {"elements": ELEMENTS, "indices": INDICES, "reductions": REDUCTIONS, "shapes": SHAPES, "windows": WINDOWS}


class Family(torch.nn.Module):
    """All results of some functions, each of inputs of its own; arguments that are no tensors are given."""

    def __init__(self, cases):
        super().__init__()
        self.cases = cases
        self.modules_of_it = torch.nn.ModuleList(case[0] for case in cases if isinstance(case[0], torch.nn.Module))

    def forward(self, *inputs):
        left, result = iter(inputs), []
        for function, *given in self.cases:
            results = function(*(next(left) if isinstance(one, torch.Tensor) else one for one in given))
            result += torch.utils._pytree.tree_leaves(results)
        return tuple(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_operators_compute_what_pytorch_does(name):
    cases = FAMILIES[name]
    family = Family(cases).eval()
    inputs = tuple(one.clone() for case in cases for one in case[1:] if isinstance(one, torch.Tensor))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = family(*inputs)
        got = compile_model(family, inputs, threads=1, check=False)(*inputs)
    assert len(got) == len(want)
    for actual, other in zip(got, want, strict=True):
        assert actual.shape == other.shape
        assert actual.dtype == other.dtype
        np.testing.assert_allclose(actual, other, rtol=1e-5, atol=2e-5)


def test_deviations_of_numbers_whose_squares_leave_the_range():
    large, small, half = r(4, 9) * 1e30, r(4, 9) * 1e-30, (r(4, 9) * 500).half()
    cases = [
        *((lambda a: a.std(), x) for x in (large, small, half)),
        (lambda a: a.std(False), large),
        (lambda a: a.std(1), small),
        (lambda a: a.std((0, 1), correction=0, keepdim=True), large),
        (lambda a: torch.std_mean(a, 0), large),
    ]
    family, inputs = Family(cases).eval(), [case[1] for case in cases]
    for actual, other in zip(
        compile_model(family, inputs, threads=1, check=False)(*inputs), family(*inputs), strict=True
    ):
        assert actual.dtype == other.dtype
        np.testing.assert_allclose(actual, other, rtol=2e-3 if actual.dtype == torch.float16 else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grids_in_float64(padding):
    image, grid = r(2, 2, 4, 5).double(), 1.6 * r(2, 3, 2, 2).double()
    cases = [
        (lambda a, g, mode=mode: functional.grid_sample(a, g, mode, padding, align_corners=False), image, grid)
        for mode in ("bilinear", "bicubic", "nearest")
    ]
    family, inputs = Family(cases).eval(), [image, grid] * len(cases)
    for actual, other in zip(
        compile_model(family, inputs, threads=1, check=False)(*inputs), family(*inputs), strict=True
    ):
        np.testing.assert_allclose(actual, other, rtol=1e-12, atol=1e-14)


def test_places_out_of_range_stop_at_the_ends():
    class Places(torch.nn.Module):
        def forward(self, x, index):
            return x.gather(1, index), x.scatter_add(1, index, torch.ones_like(x[:, :3]))

    x, index = r(3, 5), i(3, 3, low=0, high=5)
    compiled = compile_model(Places().eval(), (x, index), threads=1, check=False)
    gathered, added = compiled(x, torch.full((3, 3), 10**9))
    assert torch.equal(gathered, x[:, 4:].expand(3, 3))
    assert torch.allclose(added[:, 4], x[:, 4] + 3)


def test_places_in_rows_of_the_least_number_and_with_nan():
    x = r(2, 1, 7, 6)
    x[0], x[1, 0, :3, :3] = -torch.inf, -torch.inf
    row = r(4, 9)
    row[0], row[1, 3], row[2] = -torch.inf, torch.nan, torch.nan
    cases = [
        (lambda a: functional.max_pool2d(a, 3, 2, 1, return_indices=True), x),
        (lambda a: functional.max_pool2d(a, 2, 2, 1, ceil_mode=True, return_indices=True), x),
        (lambda a: functional.max_pool1d(a[0], 3, 1, 1, return_indices=True), x),
        (lambda a: functional.adaptive_max_pool2d(a, (3, 4), return_indices=True), x),
        (lambda a: a.max(1), row),
        (lambda a: a.median(1), row),
        (lambda a: torch.sort(a, dim=1, stable=True), row),
        (lambda a: a.argmin(1), torch.full((2, 3), 255, dtype=torch.uint8)),
    ]
    family = Family(cases).eval()
    inputs = [case[1] for case in cases]
    for actual, other in zip(
        compile_model(family, inputs, threads=1, check=False)(*inputs), family(*inputs), strict=True
    ):
        np.testing.assert_array_equal(actual, other)


@pytest.mark.parametrize("number", [1e-8, 3e-6, 7e4, 1e6, 0.125])
def test_numbers_that_16_bits_do_not_hold(number):
    x = torch.tensor([1, 1000, -6, 0.1, 6e4, torch.inf, torch.nan, -0.0]).half()
    cases = [
        lambda a: a * number,
        lambda a: number * a,
        lambda a: a / number,
        lambda a: a + number,
        lambda a: a - number,
    ]
    inputs = [x] * len(cases)
    family = Family([(case, x) for case in cases]).eval()
    for actual, case in zip(compile_model(family, inputs, threads=1, check=False)(*inputs), cases, strict=True):
        np.testing.assert_allclose(actual, case(x.double()).half(), rtol=1e-3, atol=6e-8)


def test_places_of_nan_among_boundaries():
    values = torch.tensor([[torch.nan, torch.inf, -torch.inf], [2, -1, 0.5]])
    edges = torch.tensor([-3.0, -1, 0, 0, 2, torch.inf])
    cases = [
        (lambda a, e: torch.searchsorted(e, a), values, edges),
        (lambda a, e: torch.searchsorted(e, a, right=True), values, edges),
        (lambda a, e: torch.bucketize(a, e), values, edges),
        (lambda a, e: torch.searchsorted(e.expand(2, 6).contiguous(), a), values, edges),
    ]
    inputs = [one for case in cases for one in case[1:]]
    family = Family(cases).eval()
    for actual, other in zip(
        compile_model(family, inputs, threads=1, check=False)(*inputs), family(*inputs), strict=True
    ):
        np.testing.assert_array_equal(actual, other)
