"""Attention over caches in pages: read through a table as far as they are held, new rows put where they belong."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels are compiled by Triton")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch

import anatune
from anatune.errors import BuildError, WorkloadError
from tests.tiers import slow_from
from tests.unit.network.compiling.targets.gpu_models import error, machine_code, without_code, written
from tests.wording import refuses

nn, functional = torch.nn, torch.nn.functional
DIM, HEADS, GROUPS, SIZE, PAGE, PAGES, POOL = 32, 4, 2, 64, 16, 3, 9
RESULT = HEADS * SIZE


class Layer(nn.Module):
    """An attention of servers: pools of pages, a table of those of each sequence, and how many keys it has."""

    def __init__(self, puts="", window=PAGE * PAGES):
        super().__init__()
        self.puts, self.window = puts, window
        inner = GROUPS * SIZE
        self.query, self.key, self.value = nn.Linear(DIM, RESULT), nn.Linear(DIM, inner), nn.Linear(DIM, inner)
        self.out = nn.Linear(RESULT, DIM)

    def put(self, pools, made, page, slot):
        """Return pools in which rows have been put."""
        if self.puts == "slots":
            flat = (pool.view(-1, GROUPS, SIZE) for pool in pools)
            pairs = zip(flat, made, strict=True)
            return tuple(one.index_copy(0, page * PAGE + slot, rows).view_as(pools[0]) for one, rows in pairs)
        for pool, rows in zip(pools, made, strict=True):
            pool[page, slot] = rows
        return pools

    def forward(self, x, keys, values, table, lengths):
        batch, count, _ = x.shape
        query = self.query(x).view(batch, count, HEADS, SIZE).transpose(1, 2)
        places = lengths[:, None] - count + torch.arange(count, device=x.device)
        pools = keys, values
        if self.puts:
            page = torch.gather(table, 1, (places // PAGE).long()).reshape(-1)
            made = (own(x).view(-1, GROUPS, SIZE) for own in (self.key, self.value))
            pools = self.put(pools, made, page, (places % PAGE).reshape(-1))
        held = (pool[table].reshape(batch, -1, GROUPS, SIZE).transpose(1, 2) for pool in pools)
        key, last = torch.arange(table.shape[1] * PAGE, device=x.device), places[:, :, None]
        mask = (key <= last) & (key > last - self.window) if self.window < len(key) else key <= last
        seen = functional.scaled_dot_product_attention(query, *held, mask[:, None], enable_gqa=True)
        found = self.out(seen.transpose(1, 2).reshape(batch, count, RESULT))
        return (found, *pools) if self.puts == "slots" else found


def given(count=1, lengths=(20, 41), dtype=torch.int32, pool=POOL, pages=PAGES):
    """Return inputs in which no page is where its number in the sequence says."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(2, count, DIM, generator=random)
    pools = [torch.randn(pool, PAGE, GROUPS, SIZE, generator=random) for _ in range(2)]
    table = torch.arange(pool).flip(0)[: 2 * pages].view(2, pages)
    return x, *pools, table.to(dtype), torch.tensor(lengths, dtype=dtype)


def narrowed(inputs):
    return [one.bfloat16() if one.is_floating_point() else one for one in inputs]


CASES = [("h100", 1, torch.int32, PAGE * PAGES), ("mi300x", 3, torch.int64, PAGE * PAGES), ("h100", 1, torch.int32, 7)]


@pytest.mark.parametrize(("hw", "count", "dtype", "window"), slow_from(1, CASES))
def test_keys_are_read_in_their_pages(hw, count, dtype, window):
    torch.manual_seed(0)
    model = Layer(window=window).eval()
    inputs = given(count, dtype=dtype)
    own = written(model.bfloat16(), narrowed(inputs), hw)
    model.float()
    (kernel,) = (one.workload for one in own.summary.kernels if one.workload.startswith("attention"))
    assert "--page-size 16" in kernel
    assert ("--window 7" in kernel) == (window == 7)
    launches = [launch for launch in own.program.launches if "take" in launch.name]
    assert all(region.num_bytes < 1000 for launch in launches for region in launch.regions)  # the table alone
    own.interprets = True

    def differs(*others):
        got, want = own(*narrowed(others)).float(), model(*others).detach()
        return float((got - want).abs().max() / want.abs().max())

    x, keys, values, table, lengths = inputs
    for now in (lengths, lengths + 6, torch.tensor((0, 48), dtype=dtype)):
        assert differs(x, keys, values, table, now) < 2e-2
        assert differs(x, keys, values, table.flip(1) - 1, now) < 2e-2  # a page counted from the end, too
    wrong = own(*narrowed((x, keys, values, table.flip(1), lengths))).float()
    assert (wrong - model(*inputs)).abs().max() > 0.1 * wrong.abs().max()


@pytest.mark.slow
def test_pools_that_would_be_converted_are_gathered_from():
    torch.manual_seed(0)
    model, inputs = Layer().eval(), given()
    own = written(model, inputs)
    (kernel,) = (one.workload for one in own.summary.kernels if one.workload.startswith("attention"))
    assert "page" not in kernel
    assert error(model, own, inputs) < 2e-2


@pytest.mark.parametrize(("hw", "puts"), [("h100", "pages"), ("mi300x", "slots")])
@pytest.mark.slow
def test_rows_are_put_into_their_pages(hw, puts):
    torch.manual_seed(0)
    model, count = Layer(puts).eval(), 3
    x, keys, values, table, lengths = given(count, (14, 40))
    state = {"state": {"output1": "keys", "output2": "values"}} if puts == "slots" else {}
    own = written(model, (x, keys.clone(), values.clone(), table, lengths), hw, check=puts == "pages", **state)
    assert puts != "pages" or own.summary.check.error < 2e-2  # in the interpreter, with a state of its own
    (put,) = (launch for launch in own.program.launches if "put" in launch.name)
    assert sum(region.role == "state" for region in put.regions) == 2
    assert any("--page-size 16" in kernel.workload for kernel in own.summary.kernels)
    own.interprets = True
    own.state = {"keys": keys.numpy(), "values": values.numpy()}
    for step in range(2):  # over the end of a page
        x = torch.randn(2, count, DIM)
        got = own(x, table, lengths + step * count)
        want = model(x, keys, values, table, lengths + step * count)
        if puts == "slots":
            want, keys, values = want
        assert (got - want).abs().max() < 2e-2 * want.abs().max()
        for pool, held in zip((keys, values), own.state.values(), strict=True):
            np.testing.assert_allclose(held, pool.detach().numpy(), atol=2e-2)


def test_the_pages_of_sequences_are_counted_and_not_the_pool():
    def seconds(**more):
        with torch.device("meta"):
            model = Layer().eval().bfloat16()
        inputs = [one.to("meta") for one in narrowed(given(**more))]
        (found,) = anatune.compare(model, inputs, hw=["h100"], precision="bfloat16")
        return found.whole_s

    few = seconds(pages=512, pool=1024)
    assert seconds(pages=512, pool=4096) == few
    assert seconds(pages=2048, pool=4096) > few


def test_what_has_no_pages():
    class Wrong(Layer):
        def forward(self, x, keys, values, table, lengths):
            return super().forward(x, keys, values, table.float(), lengths)

    with refuses(WorkloadError):
        written(Wrong().eval(), given())
    with refuses(BuildError):
        written(Layer("slots").eval(), given())


@pytest.mark.slow
def test_tokens_of_several_sequences_lie_behind_each_other():
    onnx = pytest.importorskip("onnx", reason="the model is ONNX's")
    tokens, helper = 4, onnx.helper
    _, keys, values, table, past = given(tokens, (15, 40))
    rows = [torch.randn(tokens, count * SIZE) for count in (HEADS, GROUPS, GROUPS)]
    begins = torch.tensor([0, 3, 4], dtype=torch.int32)
    named = {**dict(zip(("query", "key", "value"), rows, strict=True)), "keys": keys, "values": values}
    named |= {"begins": begins, "past": past, "table": table}
    made = {"output": rows[0], "new_keys": keys, "new_values": values}
    node = helper.make_node(
        "PagedAttention", [*named], [*made], domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS
    )
    kinds = {torch.float32: onnx.TensorProto.FLOAT, torch.int32: onnx.TensorProto.INT32}
    sides = [
        [helper.make_tensor_value_info(name, kinds[one.dtype], one.shape) for name, one in side.items()]
        for side in (named, made)
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "paged", *sides), opset_imports=opsets, ir_version=10)
    with without_code():
        own = anatune.compile(
            model, hw="h100", precision="bfloat16", state={"new_keys": "keys", "new_values": "values"}
        )
    assert [kernel.workload for kernel in own.summary.kernels if "--page-size 16" in kernel.workload]
    own.interprets = True
    own.state = {"keys": keys.numpy(), "values": values.numpy()}
    got = own(*rows, begins, past, table)
    for token, (sequence, place) in enumerate([(0, 15), (0, 16), (0, 17), (1, 40)]):
        at = table[sequence, place // PAGE], place % PAGE
        keys[at], values[at] = rows[1][token].view(GROUPS, SIZE), rows[2][token].view(GROUPS, SIZE)
        held = (
            one[table[sequence].long()].view(-1, GROUPS, SIZE)[: place + 1].transpose(0, 1) for one in (keys, values)
        )
        query = rows[0][token].view(HEADS, 1, SIZE)
        want = functional.scaled_dot_product_attention(query, *held, enable_gqa=True).view(-1)
        assert (got[token] - want).abs().max() < 2e-2 * want.abs().max()
    np.testing.assert_allclose(own.state["keys"], keys.numpy(), atol=2e-2)


@pytest.mark.slow
def test_texts_with_pages_are_compiled():
    inputs = given(3, (14, 40))
    models = [
        written(Layer().eval().bfloat16(), narrowed(given(count, dtype=dtype)), hw) for hw, count, dtype, _ in CASES
    ]
    models.append(written(Layer("pages").eval(), inputs))
    models.append(written(Layer("slots").eval(), inputs, "mi300x", state={"output1": "keys", "output2": "values"}))
    assert all(one.image[:4] == b"\x7fELF" for one in machine_code(models))
