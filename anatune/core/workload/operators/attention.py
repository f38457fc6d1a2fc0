"""The constructor of attention (forward): softmax(Q K^T / sqrt(d)) V for every head."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anatune.core.workload.access import FLOAT8_DTYPES
from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.operators._arguments import check_choice, check_extent, check_flag, check_integer
from anatune.core.workload.operators._product import Dimension, make_access
from anatune.errors import WorkloadError

_HALVES = ("float16", "bfloat16")
_WORDS = (*_HALVES, *FLOAT8_DTYPES, *(f"{dtype}:{result}" for dtype in FLOAT8_DTYPES for result in _HALVES))


def attention(
    batch: int,
    heads: int,
    kv_heads: int,
    seq_q: int,
    seq_kv: int,
    head_dim: int,
    causal: bool = False,
    window: int = 0,
    dtype: str = "float16",
    page_size: int = 0,
) -> Workload:
    """Return ``O[b, n, q] = sum_kv softmax_kv(Q[b, n, q] . K[b, n // H, kv] / sqrt(head_dim)) V[b, n // H, kv]``.

    The operands are the queries Q, the keys K and the values V; H = heads / kv_heads heads of queries share one head of
    keys. Q and O are (batch, heads, seq_q, head_dim), K and V are (batch, kv_heads, seq_kv, head_dim); rows are
    contiguous. In a paged cache K and V are (batch x pages, kv_heads, page_size, head_dim) with pages =
    ceil(seq_kv / page_size), and the operand block_table, (batch, pages) int32, holds the position of each page.

    Parameters
    ----------
    batch, heads, kv_heads, seq_q, seq_kv, head_dim : int, >= 1
        Extents in elements; kv_heads divides heads.
    causal : bool
        Whether query q sees only the keys up to q + seq_kv - seq_q; seq_kv must then be at least seq_q.
    window : int
        With a causal mask: largest number of keys that a query sees; 0: all.
    dtype : str
        "float16", "bfloat16", or an 8-bit float for Q, K and V, then ":" and the result's dtype (default "bfloat16").
    page_size : int
        Number of keys in a page of the cache; 0: the cache has no pages.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    extents = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": seq_q, "seq_kv": seq_kv}
    extents["head_dim"] = head_dim
    sizes = {name: check_extent("attention", name, value) for name, value in extents.items()}
    is_causal = check_flag("attention", "causal", causal)
    visible_keys = check_integer("attention", "window", window, 0, "leave it out where a query sees all keys")
    page = check_integer("attention", "page_size", page_size, 0, "leave it out where keys lie in order")
    word = check_choice("attention", "dtype", dtype, _WORDS)
    _check(sizes, is_causal, visible_keys)
    element, _, result = word.partition(":")
    result = result or (element if element in _HALVES else "bfloat16")
    shared = sizes["heads"] // sizes["kv_heads"]
    b, g, d = ((sizes[name], (Term(axis),), 0) for name, axis in (("batch", "b"), ("kv_heads", "g"), ("head_dim", "d")))
    terms = (Term("g", shared), Term("h")) if shared > 1 else (Term("g"), Term("h"))
    head: Dimension = (sizes["heads"], terms, 0)
    rows: Dimension = (sizes["seq_q"], (Term("q"),), 0)
    table: tuple[Access, ...] = ()
    keys = {"kv": sizes["seq_kv"]}
    cache: list[Dimension] = [b, g, (sizes["seq_kv"], (Term("kv"),), 0), d]
    if page:
        pages = -(-sizes["seq_kv"] // page)
        keys = {"p": pages, "s": page}
        page_dimension = (sizes["batch"] * pages, (Term("b", pages), Term("p")), 0)
        cache = [page_dimension, g, (page, (Term("s"),), 0), d]
        table = (make_access("block_table", "int32", [b, (pages, (Term("p"),), 0)]),)
    outer = {"b": sizes["batch"], "g": sizes["kv_heads"], "h": shared, "q": sizes["seq_q"], "d": sizes["head_dim"]}
    return Workload(
        operator="attention",
        axes=(
            *(Axis(name, size, "spatial") for name, size in outer.items()),
            *(Axis(name, size, "reduction") for name, size in keys.items()),
        ),
        reads=(
            make_access("queries", element, [b, head, rows, d]),
            make_access("keys", element, cache),
            make_access("values", element, cache),
            *table,
        ),
        write=make_access("output", result, [b, head, rows, d]),
        body="attention",
        flop_per_point=4,  # a multiply-add of each of the two products
        attributes=(
            *sizes.items(),
            ("causal", is_causal),
            ("window", visible_keys),
            ("dtype", word),
            ("page_size", page),
        ),
    )


def strided_attention(
    workload: Workload, strides: Sequence[tuple[int, int, int]], *, counted: str = "", pool: int = 0
) -> Workload:
    """Return an attention whose Q, K and V have other strides, or are parts of wider matrices.

    Parameters
    ----------
    strides : sequence of three (int, int, int)
        Strides of Q, K and V, in elements: between sequences (of paged K and V: between pages), between heads and
        between tokens. In the output the heads of a token are contiguous: (batch x seq_q, heads x head_dim).
    counted : {"", "held", "lengths"}
        An operand with the number of keys that exist: with "held", (1,) int32, the first ``held[0] + seq_q`` keys; with
        "lengths", (batch,) int32, the first ``lengths[b]`` keys of sequence b. The last seq_q of them belong to the
        queries' own tokens; queries that see no key give zeros.
    pool : int
        Number of pages of K and V in memory, if there are more than the sequences use.
    """
    attributes = dict(workload.attributes)
    heads, groups, dim = (int(str(attributes[name])) for name in ("heads", "kv_heads", "head_dim"))
    shared, queries = heads // groups, int(str(attributes["seq_q"]))
    sizes = {axis.name: axis.extent for axis in workload.axes}
    pages = sizes.get("p", 0)
    pool = max(pool, sizes["b"] * pages)

    def line(access: Access, tensor_strides: tuple[int, int, int], token: str) -> Access:
        batch, head, row = tensor_strides
        terms = {"b": batch, "g": head * shared if token == "q" else head, "h": head if token == "q" else 0}
        terms |= {token: row, "d": 1}
        page_dimension: list[Dimension] = []
        if token == "s":
            terms["b"], page_dimension = 0, [(pool, (Term("b", pages), Term("p")), 0)]
        size = 1 + sum((sizes[axis] - 1) * step for axis, step in terms.items())
        kept = tuple(Term(axis, step) for axis, step in terms.items() if step and sizes[axis] > 1)
        return make_access(access.tensor, access.dtype, [*page_dimension, (batch if page_dimension else size, kept, 0)])

    token = "s" if pages else "kv"
    reads = [*map(line, workload.reads, strides, ("q", token, token)), *workload.reads[3:]]
    reads += [make_access(counted, "int32", [(sizes["b"], (Term("b"),), 0)])] if counted == "lengths" else []
    reads += [make_access(counted, "int32", [(1, (), 0)])] if counted == "held" else []
    rows: Dimension = (sizes["b"] * queries, (Term("b", queries), Term("q")), 0)
    columns: Dimension = (heads * dim, (Term("g", shared * dim), Term("h", dim), Term("d")), 0)
    return msgspec.structs.replace(
        workload,
        reads=tuple(reads),
        write=make_access(workload.write.tensor, workload.write.dtype, [rows, columns]),
        attributes=(*workload.attributes, ("strides", tuple(strides)), ("counted", counted), ("pool", pool)),
    )


def _check(sizes: dict[str, int], causal: bool, window: int) -> None:
    """Raise WorkloadError if sizes contradict each other."""
    if sizes["heads"] % sizes["kv_heads"]:
        raise WorkloadError(
            f"attention: {sizes['heads']} heads share {sizes['kv_heads']} heads of keys, expected kv_heads to divide "
            "heads; correct one of them"
        )
    if causal and sizes["seq_q"] > sizes["seq_kv"]:
        raise WorkloadError(
            f"attention: seq_q is {sizes['seq_q']} and seq_kv {sizes['seq_kv']}, expected at least as many keys as "
            "queries under a causal mask; the first queries would see none"
        )
    if window and not causal:
        raise WorkloadError(
            f"attention: window is {window} without a causal mask, expected one of a causal mask; add causal=True "
            "(--causal), or leave the window out"
        )
