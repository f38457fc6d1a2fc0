"""Attentions that read keys and values in their pages, and attentions that read gathered ones."""

import pytest

pytest.importorskip("torch", reason="the models are PyTorch's")
pytest.importorskip("tvm", reason="models are read beside TVM")

import torch

from anatune.network.graph.operators import ATTENTION
from anatune.network.graph.passes.attention import attention_of, fuse_attention, replace_mask
from anatune.network.graph.passes.order import MATRIX_UNITS, run_passes
from anatune.network.relax.frontends import import_model

BATCH, HEADS, GROUPS, DIM, PAGE, PAGES, POOL = 2, 4, 2, 16, 8, 3, 10
SHAPE, TURNED = (POOL, PAGE, GROUPS, DIM), (POOL, GROUPS, PAGE, DIM)


class Attention(torch.nn.Module):
    def __init__(self, gathered):
        super().__init__()
        self.gathered = gathered

    def forward(self, query, table, *pools):
        keys, values = (
            one.reshape(BATCH, -1, GROUPS, DIM).transpose(1, 2) for one in self.gathered(table.long(), *pools)
        )
        query = query.view(BATCH, 1, HEADS, DIM).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def attention(gathered, *shapes, dtype=torch.bfloat16):
    pools = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    inputs = (torch.zeros(BATCH, HEADS * DIM, dtype=dtype), torch.zeros(BATCH, PAGES, dtype=torch.int32), *pools)
    source = import_model(Attention(gathered).eval(), inputs)
    graph = run_passes(MATRIX_UNITS, (source.widen() if dtype != torch.float32 else source).graph())
    (node,) = (one for one in fuse_attention(graph, lambda node: True).nodes() if one.op == ATTENTION)
    return replace_mask(node)


KEYS = PAGE * GROUPS * DIM
embedding = torch.nn.functional.embedding


@pytest.mark.parametrize(
    ("gathered", "shapes", "offsets", "pool", "apart"),
    [
        (lambda table, k, v: (k[table], v[table]), (SHAPE, SHAPE), (0, 0), POOL, 1),
        (lambda table, *both: (one[table.view(-1)] for one in both), (SHAPE, SHAPE), (0, 0), POOL, 1),
        (lambda table, *both: (embedding(table, one) for one in both), ((POOL, KEYS),) * 2, (0, 0), POOL, 1),
        (lambda table, kv: (kv[0][table], kv[1][table]), ((2, *SHAPE),), (0, POOL * KEYS), 2 * POOL, 1),
        (lambda table, kv: kv[table].unbind(3), ((POOL, PAGE, 2, GROUPS, DIM),), (0, GROUPS * DIM), POOL, 2),
    ],
)  # fmt: skip
def test_pages_of_a_pool(gathered, shapes, offsets, pool, apart):
    node = attention(gathered, *shapes)
    result = attention_of(node)
    assert (result.page_size, result.offsets[1:], result.pool) == (PAGE, offsets, pool)
    assert result.strides[1] == result.strides[2] == (KEYS * apart, DIM, GROUPS * DIM * apart)
    _, keys, values, table = node.arguments
    assert {keys.type.dtype, values.type.dtype} == {"bfloat16"}  # as they are given
    assert table.type == ((BATCH, PAGES), "int32")


@pytest.mark.parametrize(
    ("gathered", "shapes", "dtype"),
    [
        (lambda table, k, v: (k[table], v[table.flip(0)]), (SHAPE, SHAPE), torch.bfloat16),
        (lambda table, k, v: (k[table], v[: BATCH * PAGES]), (SHAPE, SHAPE), torch.bfloat16),
        (lambda table, *both: (one[table].transpose(2, 3) for one in both), (TURNED, TURNED), torch.bfloat16),
        (lambda table, k, v: (k[table], v[table]), (SHAPE, SHAPE), torch.float32),  # all would be converted
    ],
)  # fmt: skip
def test_what_is_gathered_by_other_kernels(gathered, shapes, dtype):
    result = attention_of(attention(gathered, *shapes, dtype=dtype))
    assert result is None or result.page_size == 0
