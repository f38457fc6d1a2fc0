"""The bench of models for GPUs: what it prints of a compiled model."""

from bench.models_gpu import kernel_lines, lines_of

KERNEL = {
    "workload": "matmul 1x1000x512", "count": 2, "flop": 4_000_000, "layout": "", "template": "cuda",
    "bound_by": "dram", "predicted_s": 3e-5, "predicted_share": 0.75, "spill_bytes": 0,
}  # fmt: skip
RESULT = {
    "predicted_s": 4e-5,
    "predicted_transposes_s": 1e-6,
    "kernels": [{**KERNEL, "predicted_s": 1e-5, "predicted_share": 0.25, "layout": "NHWC", "spill_bytes": 8}, KERNEL],
    "left_to_tvm": {"mean": 1, "nn.softmax": 3},
    "cpu_s": 12.34,
    "library_bytes": 1 << 20,
}


def test_a_line_says_times_work_order_and_what_is_left():
    (line,) = lines_of({"resnet18 rtx3090 standard": RESULT})
    assert line == [
        "resnet18", "rtx3090", "standard", "0.040", "0.001", "0.01", "1 %", "NHWC", "2, 4", "4", "1", "12.3", "1.0",
    ]  # fmt: skip


def test_the_longest_kernels_come_first():
    (text,) = kernel_lines({"resnet18 rtx3090 standard": RESULT}, 1)
    assert text == "resnet18 rtx3090 standard: 0.030 ms, 75 %: 2 x matmul 1x1000x512 (cuda, dram)"
