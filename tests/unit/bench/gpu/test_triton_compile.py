"""The plan's first choices, compiled for devices that are not there: the matrix unit is really used, nothing spills."""

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

import anatune
from bench.gpu.triton_compile import compiled, first_choices, summary, table_of, unit_of

WORKLOAD = anatune.matmul(1000, 520, 264, dtype="float16")
UNITS = {"a100": "mma.sync", "h100": "wgmma.mma_async", "b200": "tcgen05.mma", "mi300x": "v_mfma"}


@pytest.mark.slow
def test_every_device_multiplies_on_its_matrix_unit():
    kernels = [first_choices("product", WORKLOAD, anatune.hardware(device), 1)[0] for device in UNITS]
    found = compiled(kernels)
    assert [kernel.message for kernel in found] == [""] * len(UNITS)
    assert [list(unit_of(kernel.facts)) for kernel in found] == [[unit] for unit in UNITS.values()]
    assert [kernel.facts.spill_bytes for kernel in found] == [0] * len(UNITS)
    assert table_of(found).row_count == len(UNITS)
    assert summary(found).startswith("4 of 4 compiled")
    assert summary(kernels) == "nothing was compiled"
    assert first_choices("product", WORKLOAD, anatune.hardware("v100_sxm2"), 1) == []
