"""Predictions of servers: times, throughput, memory and prices."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anatune
from anatune.core.workload.operators.scaled import grouped_matmul
from anatune.errors import SpaceError, SpecError, UnknownNameError
from anatune.servers.serving.config import parse_decoder
from anatune.servers.serving.division import Parallelism
from anatune.servers.serving.engines import ENGINES, find_engine
from anatune.servers.serving.iteration import Iteration, IterationTimes, PredictedKernel, _count_most_rows
from anatune.servers.serving.load import ServerLoad, steady_times
from anatune.servers.serving.times import KernelTimes
from anatune.templates import make_model
from tests.unit.servers.serving.models import DEEPSEEK, GEMMA, GPT_OSS, LLAMA, MINIMAX, MIXTRAL, text_of, write_config
from tests.wording import check_texts, refuses

KERNELS = {name: KernelTimes(anatune.hardware(name)) for name in ("h100_sxm", "b200", "a100_sxm", "mi300x")}


class LinearTimes:
    """Iterations whose seconds are linear in the tokens, with a part for the weights."""

    def predict(self, iteration):
        seconds = 1e-3 + 1e-6 * iteration.rows + 1e-9 * iteration.decoding * iteration.held
        return [PredictedKernel("products", "all", seconds, 1)]


@given(
    isl=st.integers(1, 30_000), osl=st.integers(2, 3000), count=st.integers(1, 300),
    name=st.sampled_from([None, *ENGINES]),
)  # fmt: skip
def test_a_request_takes_its_steps_and_the_prompts_of_all(isl, osl, count, name):
    engine = find_engine(name)
    steady = steady_times(LinearTimes(), ServerLoad(isl, osl, count), engine)
    steps = osl if engine.mixes and count > 1 else osl - 1  # a prompt that is read alone makes the first token
    assert steady.tokens_per_s == pytest.approx(count * osl / (steps * steady.step_s + count * steady.read_s))
    assert steady.step_s <= steady.tpot_s <= (steady.step_s + (count - 1) / osl * steady.read_s) * (1 + 1e-12)
    assert steady.ttft_s <= steady.burst_ttft_s
    assert sum(steady.parts.values()) == pytest.approx(steady.tpot_s, rel=1e-6, abs=1e-9)
    more = steady_times(LinearTimes(), ServerLoad(isl, osl, 2 * count), engine)
    assert steady.tokens_per_s <= more.tokens_per_s * (1 + 1e-9)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("config", [LLAMA, GPT_OSS, DEEPSEEK, MIXTRAL], ids=["llama", "gpt-oss", "deepseek", "mixtral"])
def test_steps_take_at_least_the_time_to_read_their_weights(name, config):
    """Every format has a kernel on every device, and none is faster than bytes over bandwidth or FLOP over the peak."""
    decoder = parse_decoder(text_of(config), "config.json")
    times = IterationTimes(decoder, Parallelism(8), KERNELS[name])
    spec = times.spec
    step = times.predict(Iteration(64, 2048))
    cached = 64 * 2048 * sum(group.count for group in decoder.layers if not group.window)
    cached_bytes = 2 * cached * decoder.attention.count_cache_elements(8)
    dense_bytes = sum(
        group.count * 2 * decoder.hidden * decoder.attention.heads // 8 * decoder.attention.value_dim
        for group in decoder.layers
    )
    assert sum(call.time_s * call.launches for call in step) > 0.5 * dense_bytes / spec.dram.bandwidth_bytes_per_s
    attention_s = sum(call.time_s * call.launches for call in step if call.kind == "attention")
    assert attention_s > cached_bytes / spec.dram.bandwidth_bytes_per_s
    assert times.seconds(Iteration(65, 2048)) < 1.5 * times.seconds(Iteration(64, 2048))
    prompt_s = times.seconds(Iteration(0, 0, 1, 2048))
    assert prompt_s < times.seconds(Iteration(64, 2048, 1, 2048))
    assert times.seconds(Iteration(0, 0, 1, 1024, 1024)) < prompt_s


def test_the_tiles_that_are_tried_hold_nearly_the_best():
    """The whole space wins 2 % in the mean of these products, and none of them more than a quarter."""
    losses = []
    for name, rows in itertools.product(("h100_sxm", "b200"), (1, 64, 1024)):
        workload = anatune.matmul(rows, 6144, 4096, dtype="bfloat16")
        whole = anatune.plan(workload, name, 1, template="triton", correction="none").predictions[0].time_s
        losses.append(KERNELS[name].predict(workload).time_s / whole - 1)
    assert min(losses) > -1e-9
    assert sum(losses) / len(losses) < 0.02
    assert max(losses) < 0.25


def test_engines_convert_weights_of_few_bits_beside_the_products():
    """On a device without products of 4-bit weights, few rows take little longer than the bytes of the weights."""
    for tokens in (32, 128):
        workload = grouped_matmul(tokens, 128, 4, 5760, 2880, "bfloat16xint4", "tensor", 32)
        ours = make_model(workload, KERNELS["h100_sxm"].spec, "triton")
        engine_s = KERNELS["h100_sxm"].predict(workload).time_s
        assert engine_s < 0.8 * ours.times(ours.space.points_at(range(0, ours.space.size, 7)))[0].min()
        assert engine_s > workload.compulsory_bytes * 0.6 / KERNELS["h100_sxm"].spec.dram.bandwidth_bytes_per_s


@given(rows=st.integers(1, 10_000), devices=st.sampled_from([2, 4, 8]))
def test_the_busiest_device_has_more_than_its_share(rows, devices):
    counts = np.random.default_rng(0).multinomial(rows, np.full(devices, 1 / devices), 300).max(axis=1)
    assert _count_most_rows(rows, devices) == pytest.approx(counts.mean(), rel=0.08, abs=1.0)


def test_layers_have_the_kernels_of_their_models():
    launches = {}
    for name, config, tp in (
        ("gemma", GEMMA, 1),
        ("llama", LLAMA, 2),
        ("minimax", MINIMAX, 2),
        ("deepseek", DEEPSEEK, 2),
    ):
        times = IterationTimes(parse_decoder(text_of(config), name), Parallelism(tp), KERNELS["h100_sxm"])
        calls = times.predict(Iteration(8, 100))
        names = {call.name for call in calls}
        layers = times.decoder.num_layers
        launches[name] = {each: sum(c.launches for c in calls if c.name == each) / layers for each in names}
    assert (launches["gemma"]["norm"], launches["llama"]["norm"]) == (4, 2)
    assert (launches["minimax"]["all_reduce"], launches["llama"]["all_reduce"]) == (3, 2)
    assert launches["minimax"]["heads' norm"] == 1
    assert launches["deepseek"]["quantise"] == 4
    assert not {"heads' norm", "quantise"} & set(launches["llama"])


def test_prompts_that_wait_are_read_together():
    """128 prompts of 32 tokens take one pass through the weights, or one for those of each step."""
    times = IterationTimes(parse_decoder(text_of(LLAMA), "config.json"), Parallelism(), KERNELS["h100_sxm"])
    alone_s = times.seconds(Iteration(0, 0, 1, 32))
    together_s = times.seconds(Iteration(0, 0, 128, 32))
    first = steady_times(times, ServerLoad(32, 32, 128), ENGINES["sglang"])
    assert together_s < 0.2 * 128 * alone_s
    assert first.burst_ttft_s == pytest.approx(together_s + ENGINES["sglang"].host_s)
    assert first.ttft_s == pytest.approx(alone_s + first.step_s / 2 + ENGINES["sglang"].host_s)
    assert first.tokens_per_s == pytest.approx(128 * 32 / (31 * first.step_s + first.burst_ttft_s))


def test_advice_on_memory_holds(tmp_path):
    """The number of devices that a refusal names does fit, and no smaller one does."""
    path = write_config(tmp_path, LLAMA)
    (row,) = anatune.serving(path, "h100_sxm", isl=1_000_000, osl=2, concurrency=1)
    tp = int(row.refused.rpartition("--tp ")[2].split()[0])
    fits = anatune.serving(path, "h100_sxm", isl=1_000_000, osl=2, concurrency=1, tp=[tp // 2, tp])
    assert [bool(one.refused) for one in fits] == [True, False]


def test_rows_of_devices_divisions_and_loads(tmp_path):
    path = write_config(tmp_path, LLAMA)
    calls = []
    rows = anatune.serving(
        path, ["h100_sxm", "h200"], tp=[1, 2], concurrency=(1, 32), prices={"h200": 3.6},
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert [(row.hardware, row.tp, row.concurrency) for row in rows] == [
        *itertools.product(["h100_sxm", "h200"], [1, 2], [1, 32])
    ]
    assert calls == [(number, 8) for number in range(1, 9)]
    assert all(row.cost is None for row in rows[:4])
    assert rows[4].cost == pytest.approx(1e-3 / rows[4].tokens_per_s * 1e6)
    assert all(a.tpot_s < b.tpot_s for a, b in zip(rows[::2], rows[1::2], strict=True))
    assert rows[2].tpot_s < rows[0].tpot_s < 2 * rows[2].tpot_s, "two devices are faster, but not twice as fast"
    assert rows[0].meets(None, rows[0].tpot_s)
    assert not rows[0].meets(rows[0].ttft_s / 2, None)
    (hosted,) = anatune.serving(path, "h100_sxm", concurrency=1, engine="vllm")
    assert hosted.tpot_s == pytest.approx(rows[0].tpot_s + ENGINES["vllm"].host_s)


def test_memory_bounds_the_requests(tmp_path):
    path = write_config(tmp_path, LLAMA)
    (row,) = anatune.serving(path, "h100_sxm", isl=16_000, osl=2000, concurrency=500)
    capacity = anatune.hardware("h100_sxm").dram.capacity_bytes
    assert row.running == row.fits < 500
    assert (
        row.weight_bytes + row.fits * row.cache_bytes
        < 0.9 * capacity
        < row.weight_bytes + 1.2 * row.fits * row.cache_bytes
    )
    assert not row.meets(None, None)
    (small,) = anatune.serving(path, "h100_sxm", isl=16_000, osl=2000, concurrency=500, cache="fp8")
    assert small.fits >= 2 * row.fits
    (refused,) = anatune.serving(write_config(tmp_path, DEEPSEEK), "h100_sxm", concurrency=1)
    assert (refused.running, refused.tpot_s, refused.tokens_per_s) == (0, math.inf, 0.0)
    (unknown,) = anatune.serving(write_config(tmp_path, LLAMA), "a30", concurrency=1)
    assert unknown.fits is None
    check_texts([refused.refused])


def test_wrong_arguments_are_one_line(tmp_path):
    path = write_config(tmp_path, LLAMA)
    for wrong in (
        {"isl": 0},
        {"osl": 1},
        {"osl": 1.5},
        {"expert_parallel": True},
        {"concurrency": []},
        {"tp": 0},
        {"cache": "int8"},
        {"engine": "tgi"},
    ):
        if wrong == {"concurrency": []}:
            assert anatune.serving(path, "h100_sxm", **wrong) == []
            continue
        with refuses(SpaceError):
            anatune.serving(path, "h100_sxm", **wrong)
    with refuses(UnknownNameError):
        anatune.serving(path, "h1000")
    with refuses(SpecError):
        anatune.serving(path, "xeon_8124m")
    rows = anatune.serving(path, "rtx3090", tp=[3, 16], concurrency=1)
    rows += anatune.serving(path, "jetson_nano", concurrency=1)
    check_texts([row.refused for row in rows])
