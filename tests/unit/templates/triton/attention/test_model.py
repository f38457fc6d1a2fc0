import pytest

import anatune
from anatune.errors import SpaceError
from anatune.templates.gpu.io_bound import sm_bytes
from anatune.templates.triton.attention.model import AttentionModel
from tests.wording import refuses


def _best(workload: anatune.Workload, device: str = "h100") -> float:
    return anatune.plan(workload, device).predictions[0].time_s


def test_plans_take_the_template_and_are_ranked_whole() -> None:
    plan = anatune.plan(anatune.attention(2, 16, 4, 1024, 1024, 64, causal=True, dtype="bfloat16"), "h100")
    assert plan.schedules[0].template == "triton"
    times = [told.time_s for told in plan.predictions]
    assert times == sorted(times)
    assert plan.predictions[0].parts["exp_s"] > 0
    assert all(ratio >= 1.0 for told in plan.predictions for ratio in told.traffic_over_bound.values())


def test_masks_and_windows_save_time() -> None:
    full = _best(anatune.attention(2, 16, 16, 4096, 4096, 128))
    causal = _best(anatune.attention(2, 16, 16, 4096, 4096, 128, causal=True))
    window = _best(anatune.attention(2, 16, 16, 4096, 4096, 128, causal=True, window=256))
    assert full > 1.5 * causal > 3.0 * window


def test_decoding_of_few_sequences_is_split_and_reads_keys_once() -> None:
    workload = anatune.attention(1, 32, 8, 1, 32768, 128)
    plan = anatune.plan(workload, "a100")
    assert plan.schedules[0].options["split_kv"] > 1  # type: ignore[operator]
    assert plan.predictions[0].parts["combine_s"] > 0
    assert plan.predictions[0].traffic_over_bound["dram"] == pytest.approx(1.0, abs=0.01)


def test_short_memories_have_flash_attentions_bound() -> None:
    """N^2 d^2 / M elements, where that is more than each operand once."""
    workload = anatune.attention(1, 1, 1, 65536, 65536, 128)
    spec = anatune.hardware("a100")
    assert isinstance(spec, anatune.GpuSpec)
    bounds = AttentionModel(workload, spec).io_bounds
    elements = sm_bytes(spec) / 2
    assert bounds["l2"] == pytest.approx(65536**2 * 128**2 / elements * 2)
    assert bounds["dram"] == workload.compulsory_bytes


@pytest.mark.parametrize(
    ("workload", "device"),
    [
        (anatune.attention(1, 2, 2, 64, 64, 512), "h100"),
        (anatune.attention(1, 2, 2, 64, 64, 64, dtype="float8_e4m3fn"), "a100"),
    ],
)
def test_what_has_no_kernel_is_refused(workload: anatune.Workload, device: str) -> None:
    with refuses(SpaceError):
        anatune.space(workload, device, template="triton")
