"""Compiled models for reports, plots and pages: summaries made by hand, one for a CPU, one for a GPU."""

import anatune
from anatune.core.workload.text import workload_to_text
from anatune.network.graph.summary import (
    Check,
    KernelSummary,
    KernelTuning,
    Latency,
    ModelSummary,
    OperatorSummary,
    TensorSummary,
    TuningSummary,
    WeightPlace,
)
from anatune.templates import make_model
from tests.unit.records.making import CPU

WIDE = anatune.conv2d(1, 8, 14, 14, 16, 3, 3, padding=1, layout="NHWC", epilogue=("bias", "relu"))
ALONE = anatune.conv2d(1, 8, 14, 14, 16, 3, 3, padding=1, layout="NHWC")
DENSE = anatune.matmul(64, 48, 32)
MEASURED = {"anatune_0_conv2d": 60e-6, "anatune_1_matmul": 4e-6, "anatune_rows_2_softmax": 2e-6, "fused_mean": 5e-6}


def kernel(name, workload, count, predicted_s, layout="", hardware=CPU, **changes):
    made = make_model(workload, hardware).space.schedule({})
    return KernelSummary(
        name=name, workload=workload_to_text(workload), count=count, flop=workload.flop, template=made.template,
        schedule=made.to_json(), predicted_s=predicted_s, bound_by="fma", layout=layout, epilogue=workload.epilogue,
        **changes,
    )  # fmt: skip


def summary(**changes):
    """Return a model for one core of a CPU: two products, a softmax, a mean that TVM computes; tuned with 12 trials."""
    kernels = (
        kernel("anatune_0_conv2d", WIDE, 3, 15e-6, "NHWC", is_tuned=True),
        kernel("anatune_1_matmul", DENSE, 1, 3e-6),
    )
    tuning = TuningSummary(
        "trials", 12, 8, 20.0, (KernelTuning(workload_to_text(ALONE), 3, 12, 9e-6, 16e-6, 14e-6, "patience"),)
    )
    made = {
        "version": "0", "hardware": CPU.name, "arch": CPU.arch, "machine": "x86_64", "features": (),
        "threads": 1, "is_tuple": False, "inputs": (TensorSummary("<b>x</b>", "float32", (1, 8, 14, 14)),),
        "outputs": (TensorSummary("y", "float32", (1, 10)),), "weights": (WeightPlace(0, "float32", (16, 8, 3, 3)),),
        "weight_bytes": 4608, "kernels": kernels, "operators": (OperatorSummary("mean", 1, 1e-6),),
        "rows": (OperatorSummary("anatune_rows_2_softmax", 1, 1.5e-6),), "check": Check(1e-7, 1e-4, "a reference"),
        "latency": Latency(80e-6, 90e-6, True), "tuning": tuning,
    }  # fmt: skip
    return ModelSummary(**{**made, **changes})


def gpu_summary():
    """Return a model for a GPU that is not here: one product, nothing measured."""
    gpu = anatune.hardware("rtx3090")
    workload = anatune.matmul(512, 4096, 1024)
    facts = {"registers": 128, "spill_bytes": 0, "shared_bytes": 16384}
    one = kernel("anatune_0_matmul", workload, 2, 250e-6, hardware=gpu, **facts)
    return summary(
        hardware=gpu.name, arch=gpu.arch, device="gpu", kernels=(one,), rows=(), tuning=None, latency=None, check=None,
        operators=(OperatorSummary("softmax", 2),),
    )  # fmt: skip
