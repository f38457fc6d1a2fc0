"""Which axis a CPU microkernel vectorises where the weights are packed in every run."""

from anatune.core.workload.operators import conv2d
from anatune.templates.cpu.microkernels import simd_axis


def test_packing_the_weights_in_every_run_is_weighed_against_the_run():
    large = conv2d(1, 64, 56, 56, 64, 3, 3, padding=1)
    assert simd_axis(large, 16, constants=()) == simd_axis(large, 16) == "f"  # 2 % of the run
    small = conv2d(1, 64, 2, 48, 64, 2, 1)
    assert simd_axis(small, 16) == "f"
    assert simd_axis(small, 16, constants=()) == "x"  # more work to pack than to compute
