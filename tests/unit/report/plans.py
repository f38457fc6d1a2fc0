"""Plans built by hand: what the reports are tested on, without a model."""

import anatune
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.model.plan import Plan
from anatune.templates.base.model import Guarantee, Rule

RULES = (
    Rule("threads_per_block", "threads of a block", 1024),
    Rule("shared_per_block", "bytes of shared memory of a block", 101376),
    Rule("registers_per_thread", "registers of a thread", 255),
)


def prediction(time_s=188.2e-6, *, bound_by="fma", **parts):
    parts = {"fma_s": 160e-6, "shared_s": 120e-6, "dram_s": 40e-6, "tail_s": 0.0, "launch_s": 2.5e-6} | parts
    return Prediction(
        time_s=time_s,
        gflop_per_s=2 * 512 * 4096 * 1024 / time_s / 1e9,
        parts=parts,
        bound_by=bound_by,
        occupancy=2 / 3,
        occupancy_limiter="registers",
        waves=1.56,
        features={"ILP": 64.0},
        traffic_over_bound={"shared": 2.5, "l2": 1.42, "dram": 1.0},
        resources={
            "registers_per_thread": 96.0,
            "spilled_registers": 0.0,
            "shared_bytes_per_block": 16384.0,
            "threads_per_block": 256.0,
            "blocks": 256.0,
        },
    )


def schedule(workload, hardware, factors_of_i=(8, 2, 16, 2, 1)):
    tiles = {"i": factors_of_i, "j": (32, 2, 16, 4, 1), "k": (64, 4, 4)}
    return Schedule(workload, hardware, "cuda", tiles, unroll=512, vector={"A": 4, "B": 4})


def gpu_plan(*, predictions=None, guarantee=None, num_legal=7_500_000, rejected=None):
    workload, hardware = anatune.matmul(512, 4096, 1024), anatune.hardware("rtx3090")
    predictions = (
        [prediction(), prediction(188.3e-6), prediction(201.0e-6, bound_by="shared", shared_s=190e-6)]
        if predictions is None
        else predictions
    )
    return Plan(
        workload,
        hardware,
        [schedule(workload, hardware) for _ in predictions],
        predictions,
        guarantee or Guarantee("certified", num_evaluated=120_000, num_bounded=4_000),
        10_000_000,
        num_legal,
        {"threads_per_block": 2_000_000, "shared_per_block": 500_000, "registers_per_thread": 0}
        if rejected is None
        else rejected,
        RULES,
        "cuda",
    )


def empty_plan(**changes):
    rejected = {"threads_per_block": 9_000_000, "shared_per_block": 1_000_000, "registers_per_thread": 0}
    return gpu_plan(predictions=[], rejected=rejected, **{"num_legal": 0, **changes})
