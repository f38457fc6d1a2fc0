"""How layers of PyTorch are drawn: products, convolutions, pools, norms, attention, recurrent, images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.fuzz.builder import VARYING, Draw

if TYPE_CHECKING:
    from bench.fuzz.torch.cases import TorchBuilder as Builder

__all__ = ["LAYERS"]


def _batch(b: Builder) -> int:
    return VARYING if b.varies and b.chance(0.7) else b.integer(1, 3)


def _image(b: Builder, channels: int, rank: int) -> str:
    fit = [name for name in b.inputs if b.arrays[name].ndim == rank + 2 and b.arrays[name].shape[1] == channels]
    if fit and b.chance(0.4):
        return fit[-1]
    sizes = [b.choice([1, 2, 3, 5, 8, 9, 13]) if rank < 3 else b.integer(1, 6) for _ in range(rank)]
    return b.new((_batch(b), channels, *sizes), weight=False)


def _linear(b: Builder) -> None:
    x = b.pick(low=1, high=4)
    size, out = b.arrays[x].shape[-1], b.choice([1, 2, 3, 8, 16, 17, 31])
    y = b.call("{m0}({0})", x, modules=[f"torch.nn.Linear({size}, {out}, bias={b.chance(0.7)})"])
    if b.chance(0.5):
        y = b.call(
            b.choice(["F.relu({0})", "F.gelu({0})", "torch.softmax({0}, -1)", "F.silu({0})", "torch.sigmoid({0})"]), y
        )
    if b.chance(0.3):
        b.call("{0} + {1}", y, b.like(y))


def _matmul(b: Builder) -> None:
    x = b.pick(low=1, high=4)
    shape = b.arrays[x].shape
    columns = b.choice([1, 2, 5, 8, 17])
    b.call("{0} @ {1}", x, b.new((*shape[:-2], shape[-1], columns) if b.chance(0.4) else (shape[-1], columns)))


def _products(b: Builder) -> None:
    m, k, n = (b.choice([1, 2, 3, 8, 16, 17]) for _ in range(3))
    batch = _batch(b)
    left, right = b.new((batch, m, k), weight=False), b.new((batch, k, n))
    b.call(
        b.choice(
            [
                "torch.bmm({0}, {1})",
                "torch.einsum('bij,bjk->bik', {0}, {1})",
                "torch.einsum('bij,bjk->bk', {0}, {1})",
                "torch.bmm({1}.transpose(1, 2), {0}.transpose(1, 2))",
                "torch.einsum('bij,cjk->bcik', {0}, {1})",
            ]
        ),
        left,
        right,
    )


def _with_sum(b: Builder) -> None:
    m, k, n = (b.choice([1, 2, 3, 8, 17]) for _ in range(3))
    c, left, right = b.new(b.choice([(n,), (m, n), (1, n)])), b.new((m, k), weight=False), b.new((k, n))
    b.call(
        "torch.addmm({0}, {1}, {2}, beta={p}, alpha={q})", c, left, right, p=b.choice([1, 0.5]), q=b.choice([1, 2.0])
    )


def _distance(b: Builder) -> None:
    k = b.choice([1, 3, 8])
    b.call(
        b.choice(["torch.cdist({0}, {1}, p={p})", "F.pairwise_distance({0}[:1], {1}[:1])"]),
        b.new((3, k), weight=False),
        b.new((5, k)),
        p=b.choice([1.0, 2.0]),
    )


def _conv(b: Builder) -> None:
    rank, groups = b.choice([1, 2, 2, 2, 3]), b.choice([1, 1, 1, 2, 9])
    channels = groups * b.choice([1, 2, 4] if groups < 9 else [1])
    out = groups * b.choice([1, 2, 8] if groups == 1 else [1, 2])
    kernel, stride, dilation = b.choice([1, 2, 3, 3, 5]), b.choice([1, 1, 2]), b.choice([1, 1, 2])
    padding = b.choice([0, kernel // 2, kernel // 2])
    x = _image(b, channels, rank)
    mode = f", padding_mode={b.choice(['zeros', 'zeros', 'circular', 'replicate'])!r}"
    words = f"{channels}, {out}, {kernel}, {stride}, {padding}, {dilation}, {groups}, bias={b.chance(0.6)}{mode}"
    y = b.call("{m0}({0})", x, modules=[f"torch.nn.Conv{rank}d({words})"])
    if b.chance(0.4):
        y = b.call("{m0}({0})", y, modules=[f"torch.nn.BatchNorm{rank}d({out})"])
    if b.chance(0.5):
        b.call(b.choice(["F.relu({0})", "F.silu({0})", "F.hardswish({0})", "F.leaky_relu({0}, 1e-5)"]), y)


def _transposed(b: Builder) -> None:
    rank, channels, out = b.integer(1, 2), b.choice([1, 2, 4]), b.choice([1, 3])
    kernel, stride = b.integer(1, 3), b.integer(1, 3)
    around, more = b.integer(0, (kernel - 1) // 2), b.integer(0, stride - 1)
    words = f"{channels}, {out}, {kernel}, {stride}, padding={around}, output_padding={more}"
    b.call("{m0}({0})", _image(b, channels, rank), modules=[f"torch.nn.ConvTranspose{rank}d({words})"])


def _pool(b: Builder) -> None:
    rank = b.choice([1, 2, 2, 3])
    x = _image(b, b.choice([1, 2, 4]), rank)
    expression = b.choice(
        [
            "F.max_pool{r}d({0}, {k}, {s}, {p})",
            "F.avg_pool{r}d({0}, {k}, {s}, {p}, ceil_mode={c})",
            "F.max_pool{r}d({0}, {k}, {s}, {p}, ceil_mode={c})",
            "F.adaptive_avg_pool{r}d({0}, {o})",
            "F.adaptive_max_pool{r}d({0}, {o})",
            "F.avg_pool{r}d({0}, {k}, {s}, {p}, count_include_pad=False)",
            "F.lp_pool{r}d({0}, 2, {k})",
        ]
    )
    kernel = b.integer(1, 3)
    b.call(
        expression,
        x,
        r=rank,
        k=kernel,
        s=b.integer(1, 2),
        p=b.integer(0, kernel // 2),
        c=b.chance(0.5),
        o=b.integer(1, 4),
    )


def _norm(b: Builder) -> None:
    word = b.choice(["LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "BatchNorm", "local"])
    if word in ("LayerNorm", "RMSNorm"):
        x = b.pick(low=2, high=4)
        epsilon = ", eps=1e-5" if word == "RMSNorm" else ""  # else it is the dtype's, and float64 has another one
        b.call("{m0}({0})", x, modules=[f"torch.nn.{word}({b.arrays[x].shape[-1]}{epsilon})"])
        return
    rank = b.integer(1, 2)
    x = _image(b, channels := b.choice([2, 4, 6]), rank)
    words = {
        "GroupNorm": f"torch.nn.GroupNorm(2, {channels})",
        "InstanceNorm": f"torch.nn.InstanceNorm{rank}d({channels}, affine=True)",
        "BatchNorm": f"torch.nn.BatchNorm{rank}d({channels}, track_running_stats={b.chance(0.5)})",
        "local": "torch.nn.LocalResponseNorm(3)",
    }[word]
    b.call("{m0}({0})", x, modules=[words])


def _attention(b: Builder) -> None:
    heads, size, batch = b.integer(1, 3), b.choice([4, 8, 17]), _batch(b)
    rows, keys = b.choice([1, 3, 8, 16]), b.choice([1, 3, 9, 16])
    q, k, v = (
        b.new((batch, heads, rows, size), weight=False),
        *(b.new((batch, heads, keys, size), weight=False) for _ in "kv"),
    )
    mask = b.new((rows, keys), b.choice(["bool", b.dtype]))
    expression = b.choice(
        [
            "F.scaled_dot_product_attention({0}, {1}, {2})",
            # whether weights of zero hide values that are no finite numbers is open
            "F.scaled_dot_product_attention({0}, {1}, torch.where({2}.isfinite(), {2}, 1.0), is_causal=True)",
            "F.scaled_dot_product_attention({0}, {1}, {2}, attn_mask={3})",
            "torch.softmax({0} @ {1}.transpose(-1, -2) * 0.3, -1) @ {2}",
            "torch.softmax(({0} @ {1}.transpose(-1, -2)).masked_fill({3} == 0, float('-inf')), -1) @ {2}",
        ]
    )
    b.call(expression, q, k, v, mask)


def _self_attention(b: Builder) -> None:
    size = b.choice([4, 8, 12])
    x = b.new((_batch(b), b.integer(1, 6), size), weight=False)
    b.call("{m0}({0}, {0}, {0})[0]", x, modules=[f"torch.nn.MultiheadAttention({size}, 2, batch_first=True)"])


def _last_token(b: Builder) -> None:
    x = b.new((_batch(b), VARYING if b.varies else b.integer(1, 6), b.choice([4, 8])), weight=False)
    b.call(
        b.choice(
            [
                "torch.softmax({0}, -1)[:, -1]",
                "torch.tanh({0})[:, -1:]",
                "torch.relu({0}).narrow(1, 0, 1)",
                "{0}.mean(1)",
            ]
        ),
        x,
    )


def _recurrent(b: Builder) -> None:
    word, size, hidden = b.choice(["LSTM", "GRU", "RNN"]), b.integer(1, 5), b.integer(1, 4)
    x = b.new((_batch(b), b.integer(1, 4), size), weight=False)
    words = f"torch.nn.{word}({size}, {hidden}, {b.integer(1, 2)}, batch_first=True, bidirectional={b.chance(0.4)})"
    b.call("{m0}({0})[0]", x, modules=[words])


def _resized(b: Builder) -> None:
    rank = b.integer(1, 3)
    x = _image(b, b.integer(1, 3), rank)
    smooth = {1: "linear", 2: b.choice(["bilinear", "bicubic"]), 3: "trilinear"}[rank]
    expression = b.choice(
        [
            "F.interpolate({0}, scale_factor=2, mode='nearest')",
            "F.interpolate({0}, size={s}, mode={m}, align_corners={a})",
            "F.interpolate({0}, size={s}, mode='nearest-exact')",
            "F.interpolate({0}, scale_factor=1.5)",
        ]
    )
    b.call(expression, x, s=tuple(b.integer(1, 7) for _ in range(rank)), m=smooth, a=b.chance(0.5))


def _sampled(b: Builder) -> None:
    x = _image(b, 2, 2)
    grid = b.new((b.arrays[x].shape[0], b.integer(1, 4), b.integer(1, 4), 2), weight=False)
    b.call(
        "F.grid_sample({0}, {1}, mode={m}, padding_mode={p}, align_corners={a})",
        x,
        grid,
        m=b.choice(["bilinear", "nearest"]),
        p=b.choice(["zeros", "border", "reflection"]),
        a=b.chance(0.5),
    )


def _shuffled(b: Builder) -> None:
    x = b.new((_batch(b), 4 * b.integer(1, 2), 2 * b.integer(1, 3), 2 * b.integer(1, 3)), weight=False)
    b.call(
        b.choice(
            ["F.pixel_shuffle({0}, 2)", "F.pixel_unshuffle({0}, 2)", "F.channel_shuffle({0}, 2)", "F.unfold({0}, 2)"]
        ),
        x,
    )


def _bag(b: Builder) -> None:
    rows = b.integer(1, 9)
    b.call(
        "F.embedding_bag({0}, {1}, mode={m})",
        b.indices((b.integer(1, 4), b.integer(1, 4)), 0, rows, weight=False),
        b.new((rows, b.integer(1, 5)), weight=True),
        m=b.choice(["sum", "mean", "max"]),
    )


LAYERS: dict[str, Draw] = {
    "addmm (linear)": _linear,
    "addmm (linear, more)": _linear,
    "mm": _matmul,
    "bmm": _products,
    "addmm": _with_sum,
    "_cdist_forward": _distance,
    "convolution": _conv,
    "convolution (more)": _conv,
    "convolution (transposed)": _transposed,
    "avg_pool2d": _pool,
    "max_pool2d_with_indices": _pool,
    "native_layer_norm": _norm,
    "native_group_norm": _norm,
    "_softmax (attention)": _attention,
    "_softmax (heads)": _self_attention,
    "select (last token)": _last_token,
    "lstm": _recurrent,
    "upsample_nearest2d": _resized,
    "grid_sampler_2d": _sampled,
    "view (shuffle)": _shuffled,
    "_embedding_bag": _bag,
}
"""As `ELEMENTS`."""
