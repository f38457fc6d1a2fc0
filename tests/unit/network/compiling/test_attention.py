"""Attentions of whole models: what the model of the CPU chooses, what is built, what the report says."""

import json

import msgspec
import numpy as np
import pytest

import anatune
from anatune import api
from anatune.network.compiling.attention import plan_attentions
from anatune.network.graph.nodes import Constant, Node, TensorType
from anatune.network.graph.passes.simplify import permute_value
from tests.machine import fixed
from tests.unit.network.compiling import models
from tests.unit.network.graph import graphs

pytest.importorskip("tvm")


def attention(queries, keys, *, heads=4, dim=16, mask=None):
    """Return the prepared graph of an attention of heads that lie one behind another."""
    sizes = {"q": queries, "k": keys, "v": keys}
    q, k, v = (graphs.source(heads, size, dim, name=name) for name, size in sizes.items())
    scores = graphs.matmul(q, permute_value(k, (0, 2, 1)))
    scores = scores if mask is None else graphs.add(scores, Constant(mask[None]))
    powers = Node("nn.softmax", (scores,), scores.type, {"axis": -1})
    return graphs.prepared(graphs.graph(graphs.matmul(powers, v), inputs=[q, k, v]))


@pytest.fixture(scope="module")
def hardware():
    return api.hardware("ryzen_7950x").with_threads(1)


def causal(size):
    return np.triu(np.full((size, size), -np.inf, np.float32), 1)


def test_blocks_cover_all_queries_and_fit_into_the_cache(hardware):
    for queries, keys in ((128, 128), (100, 3000), (7, 512), (1000, 1000)):
        _, (planned,) = plan_attentions(attention(queries, keys), hardware)
        rows = [(one.first, one.count * one.rows) for one in planned.kernel.blocks]
        assert [first for first, _ in rows] == [sum(count for _, count in rows[:n]) for n in range(len(rows))]
        assert sum(count for _, count in rows) == queries
        assert planned.kernel.blocks[0].rows * keys * 4 <= hardware.l2.size_bytes / 2
        assert planned.flop == 4 * 4 * queries * keys * 16


def test_hidden_keys_are_no_work(hardware):
    _, (whole,) = plan_attentions(attention(256, 256), hardware)
    _, (half,) = plan_attentions(attention(256, 256, mask=causal(256)), hardware)
    assert half.flop < 0.7 * whole.flop
    assert half.time_s < 0.8 * whole.time_s
    for one in half.kernel.blocks:
        assert one.keys == one.first + one.count * one.rows
    assert "causal" in half.text
    assert len(half.kernel.blocks) <= 9


def test_few_heads_are_shared_by_many_threads():
    hardware = api.hardware("ryzen_7950x")
    _, (planned,) = plan_attentions(attention(512, 512, heads=2), hardware)
    assert planned.kernel.parts >= hardware.compute.num_cores // 4
    one, (alone,) = plan_attentions(attention(512, 512, heads=2), hardware.with_threads(1))
    assert alone.kernel.parts == 1
    assert planned.time_s < alone.time_s / 4
    assert [node.op for node in one.nodes() if node.op != "reshape"] == ["anatune.attention"]


def test_what_is_predicted_to_be_slower_is_not_chosen(hardware, monkeypatch):
    monkeypatch.setattr("anatune.network.compiling.attention._AttentionPlanner.separate_s", lambda *_: 0.0)
    graph = attention(128, 128)
    assert plan_attentions(graph, hardware) == (graph, [])


def test_no_block_fits_into_a_cache_that_is_too_small(hardware):
    graph = attention(128, 10_000_000)
    assert plan_attentions(graph, hardware) == (graph, [])


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_transformer_block_has_one_product_and_one_attention(is_causal):
    pytest.importorskip("torch")
    module, tokens = models.transformer_block(40, is_causal=is_causal)
    compiled = anatune.compile(module, tokens, hw=fixed(), threads=1)
    assert compiled.summary.check.error <= 1e-6
    names = [kernel.workload.split()[0] for kernel in compiled.summary.kernels]
    assert sorted(names) == ["attention", "matmul", "matmul", "matmul", "matmul"]
    assert {one.name for one in compiled.summary.operators} == {"take"}
    (kernel,) = [one for one in compiled.summary.kernels if one.workload.startswith("attention")]
    assert kernel.bound_by in ("turning", "scores", "softmax", "values")
    assert kernel.predicted_s > 0
    assert kernel.workload in compiled.report().replace("\n", " ")
    (own,) = [one for one in json.loads(msgspec.json.encode(compiled.summary))["kernels"] if one["name"] == kernel.name]
    assert own["template"] == "attention"


def test_equal_attentions_are_one_kernel(hardware):
    q = graphs.source(4, 32, 16, name="q")
    value = q
    for _ in range(2):
        scores = graphs.matmul(value, permute_value(q, (0, 2, 1)))
        value = graphs.matmul(Node("nn.softmax", (scores,), scores.type, {"axis": -1}), q)
    graph, planned = plan_attentions(graphs.prepared(graphs.graph(value, inputs=[q])), hardware)
    assert [len(one.nodes) for one in planned] == [1, 1]  # the second one reads what the first one wrote, by heads
    assert len({one.kernel.blocks for one in planned}) == 1
    assert all(isinstance(node.type, TensorType) for node in graph.nodes())


def test_the_padding_of_a_batch_is_part_of_its_attention():
    torch = pytest.importorskip("torch")

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.projection, self.output = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

        def forward(self, x, is_there):
            parts = self.projection(x).view(2, 40, 3, 2, 8).permute(2, 0, 3, 1, 4)
            mask = is_there[:, None, None, :]
            found = torch.nn.functional.scaled_dot_product_attention(*parts.unbind(0), attn_mask=mask)
            return self.output(found.transpose(1, 2).reshape(2, 40, 16))

    torch.manual_seed(0)
    is_there = torch.arange(40)[None] < torch.tensor([[40], [23]])
    compiled = anatune.compile(Padded().eval(), (torch.randn(2, 40, 16), is_there), hw=fixed(), threads=1)
    assert compiled.summary.check.error <= 1e-6
    texts = [kernel.workload for kernel in compiled.summary.kernels]
    assert [text for text in texts if text.startswith("attention 2x2 40x40x8:8 mask 2x40")]
    assert len(texts) == 3
