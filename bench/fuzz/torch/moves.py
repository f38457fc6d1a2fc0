"""How PyTorch's operators that move elements are drawn: shapes, slices, joints, indices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.fuzz.builder import Draw, Skip

if TYPE_CHECKING:
    from bench.fuzz.torch.cases import TorchBuilder as Builder

__all__ = ["MOVES", "axis_of"]


def _any(b: Builder, low: int = 1, high: int = 5) -> str:
    return b.pick((b.dtype,) * 6 + ("bool", "int64", "uint8"), low, high)


def axis_of(b: Builder, x: str) -> int:
    """Return an axis of a value."""
    return b.integer(-b.arrays[x].ndim, b.arrays[x].ndim - 1)


def _view(b: Builder) -> None:
    x = _any(b)
    shape, sizes = list(b.arrays[x].shape), []
    while shape:
        count = b.integer(1, min(2, len(shape)))
        size, shape = int(np.prod(shape[:count])), shape[count:]
        factors = [one for one in range(2, 9) if size and size % one == 0 and size != one]
        sizes += [f := b.choice(factors), size // f] if factors and b.chance(0.4) else [size]
    if b.chance(0.5) and 0 not in sizes:
        sizes[b.integer(0, len(sizes) - 1)] = -1
    b.call(b.choice(["{0}.reshape({s})", "{0}.contiguous().view({s})"]), x, s=tuple(sizes))


def _moved(b: Builder) -> None:
    """Add one of many moves along an axis."""
    x = _any(b)
    d, e = axis_of(b, x), axis_of(b, x)
    size = b.arrays[x].shape[d]
    k = b.integer(-size - 1, size + 1)
    expression = b.choice(
        [
            "torch.flip({0}, [{d}])",
            "torch.roll({0}, {k}, {d})",
            "{0}.transpose({d}, {e})",
            "torch.unsqueeze({0}, {d})",
            "torch.squeeze({0}, {d})",
            "{0}.flatten({d}, -1)",
            "torch.narrow({0}, {d}, 0, {n})",
            "{0}.movedim({d}, {e})",
            "torch.repeat_interleave({0}, 2, {d})",
            "torch.cat([{0}, {0}], {d})",
            "torch.stack([{0}, {0}], {d})",
            "torch.select({0}, {d}, -1)",
            "{0}[..., 1:]",
            "{0}[..., ::2]",
            "{0}[:, -1]",
            "{0}[1:-1]",
            "{0}[None]",
            "{0}[..., -1:]",
            "{0}.unfold({d}, {n}, 1)",
            "torch.diagonal({0})",
            "torch.tril({0})",
            "torch.triu({0}, 1)",
            "torch.rot90({0})",
            "{0}.T",
            "{0}.contiguous().clone()",
            "torch.cat([{0}.flip(0), {0}], 0)",
            "{0}.expand(3, *[-1] * {r})",
            "{0}.repeat(*[2] * {r})",
            "torch.chunk({0}, 2, {d})[0]",
            "torch.split({0}, {n}, {d})[-1]",
            "{0}.unbind({d})[-1]",
            "torch.tile({0}, (2,))",
            "torch.atleast_2d({0})",
            "{0}.view_as({0})",
            "{0}.swapaxes({d}, {e})",
            "{0}.flatten(0, 1).flip(0)",
            "{0}.as_strided({0}.shape, {0}.stride())",
        ]
    )
    b.call(expression, x, d=d, e=e, k=k, n=b.integer(1, max(1, size)), r=b.arrays[x].ndim)


def _permute(b: Builder) -> None:
    x = _any(b, 2)
    b.call("{0}.permute({p})", x, p=tuple(int(one) for one in b.random.permutation(b.arrays[x].ndim)))


def _pad(b: Builder) -> None:
    x = b.pick(low=3, high=5)
    rank = b.integer(1, min(3, b.arrays[x].ndim - 2))
    mode = b.choice(["constant", "reflect", "replicate"])
    low = -1 if mode == "constant" and b.chance(0.2) else 0
    b.call("F.pad({0}, {p}, mode={m})", x, p=tuple(b.integer(low, 2) for _ in range(2 * rank)), m=mode)


def _index(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    size = b.arrays[x].shape[axis]
    i = b.indices((b.integer(1, 6),), 0, size)
    expression = b.choice(
        [
            "torch.index_select({0}, {d}, {1})",
            "{0}[" + ":, " * axis + "{1}]",
            "{0}.index_select({d}, {1}).flip({d})",
            "torch.index_select({0}, {d}, {1}).flatten(0, 1).flip(0)",
            "torch.take_along_dim({0}, {1}.reshape(-1, *[1] * ({r} - 1)), 0)",
        ]
    )
    b.call(expression, x, i, d=axis, r=b.arrays[x].ndim)


def _gather(b: Builder) -> None:
    x = _any(b)
    axis, shape = b.integer(0, b.arrays[x].ndim - 1), list(b.arrays[x].shape)
    size, shape[axis] = shape[axis], b.integer(1, 5)
    b.call("torch.gather({0}, {d}, {1})", x, b.indices(shape, 0, size), d=axis)


def _scatter(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int64"))
    if not b.arrays[x].ndim:
        raise Skip
    axis, shape = b.integer(0, b.arrays[x].ndim - 1), list(b.arrays[x].shape)
    size = shape[axis]
    shape[axis] = 1
    i, y = b.indices(shape, 0, size), b.new(shape, b.arrays[x].dtype.name)
    b.call(
        b.choice(
            [
                "torch.scatter({0}, {d}, {1}, {2})",
                "torch.scatter_add({0}, {d}, {1}, {2})",
                "torch.scatter_reduce({0}, {d}, {1}, {2}, {r})",
            ]
        ),
        x,
        i,
        y,
        d=axis,
        r=b.choice(["sum", "amax", "amin", "prod"]),
    )


def _index_put(b: Builder) -> None:
    x = b.pick(low=1, high=3)
    i = b.indices((b.integer(1, 4),), 0, b.arrays[x].shape[0])
    y = b.new((b.arrays[i].shape[0], *b.arrays[x].shape[1:]))
    b.call(
        b.choice(["torch.index_put({0}, ({1},), {2}, accumulate=True)", "torch.index_add({0}, 0, {1}, {2})"]), x, i, y
    )


def _embedding(b: Builder) -> None:
    rows = b.integer(1, 20)
    b.call(
        "F.embedding({0}, {1})",
        b.indices(b.shape(1, 2), 0, rows, weight=False),
        b.new((rows, b.integer(1, 9)), weight=True),
    )


def _search(b: Builder) -> None:
    edges = b.given(
        np.sort(b.random.standard_normal(b.integer(1, 9))).astype(b.arrays[x := b.pick()].dtype), weight=True
    )
    b.call(
        b.choice(["torch.searchsorted({1}, {0}, right={r})", "torch.bucketize({0}, {1}, right={r})"]),
        x,
        edges,
        r=b.chance(0.5),
    )


def _of_own_size(b: Builder) -> None:
    """Add a move whose numbers depend on a size of the tensor, which may vary."""
    x = _any(b, low=2)
    n = "{0}.shape[{d}]"
    expression = b.choice(
        [
            f"torch.cat([{{0}}] * 3, {{d}}).split([{n}, 2 * {n}], {{d}})[1]",
            f"torch.cat([{{0}}] * 3, {{d}}).narrow({{d}}, {n}, {n})",
            "torch.cat([{0}, {0}.flip({d})], {d}).chunk(2, {d})[1]",
            "F.pad({0}, (0, 0, {0}.shape[-2], 1))",
            "{0}.topk({0}.shape[-1], -1)[0]" if b.arrays[x].dtype.kind == "f" else f"{{0}}.expand({n}, *{{0}}.shape)",
            f"{{0}}[:1].repeat({n}, *[1] * ({{r}} - 1))",
            f"{{0}}.roll({n} // 2, {{d}})",
            f"torch.zeros({n}, dtype={{T}}) + torch.arange({n})",
        ]
    )
    b.call(expression, x, d=axis_of(b, x), r=b.arrays[x].ndim)


def _one_hot(b: Builder) -> None:
    size = b.integer(1, 9)
    b.call("F.one_hot({0}, {n}).to({T})", b.indices(b.shape(1, 2), 0, size, weight=False), n=size)


def _updated(b: Builder) -> None:
    """Add a change in place of a copy, through a view."""
    x = b.pick(low=2, high=4)
    b.call(
        b.choice(
            [
                "{0}.slice_scatter({0}[:1] * 2, 0, 0, 1)",
                "torch.select_scatter({0}, {0}[-1], 0, 0)",
                "torch.fill({0}, 2.5) + {0}",
            ]
        ),
        x,
    )


MOVES: dict[str, Draw] = {
    "clone": lambda b: b.call("torch.clone({0})", _any(b)),
    "view": _view,
    "permute": _permute,
    "constant_pad_nd": _pad,
    "index": _index,
    "index_select": _index,
    "gather": _gather,
    "scatter": _scatter,
    **{f"{op} (move)": _moved for op in ("flip", "roll", "squeeze", "select", "slice", "cat", "repeat", "unfold")},
    "slice (own size)": _of_own_size,
    "index_put": _index_put,
    "embedding": _embedding,
    "searchsorted": _search,
    "eq (one_hot)": _one_hot,
    "slice_scatter": _updated,
}
"""As `ELEMENTS`."""
