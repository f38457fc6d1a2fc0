"""The GPU probes: they compute what they should (on the CPU), compile, and keep their work (where NVRTC is)."""

import numpy as np
import pytest

from anatune.codegen.cuda import memory_probes as gpu_memory_probes
from anatune.codegen.cuda import probes as gpu_probes
from anatune.codegen.cuda.memory_probes import LINE_BYTES
from anatune.errors import MissingDependencyError
from anatune.measure.cuda.calibration.probe_checks import chain, check_result, probe_input
from anatune.measure.cuda.calibration.probe_set import matrix_name, probe_set, sweep_name

ARCH = "sm_86"
ROUNDS = 3


def small_probes():
    """Every kind that runs on a CPU, on two blocks."""
    return [
        gpu_probes.make_multiply_add(ARCH, "float32", 1, 1, 1),
        gpu_probes.make_multiply_add(ARCH, "float32", 4, 2, 2),
        *(gpu_memory_probes.read_shared(ARCH, width, warps, 2) for width, warps in ((4, 32), (8, 4), (16, 16))),
        gpu_memory_probes.read_global(ARCH, 64, 2, 1 << 15),
        gpu_memory_probes.copy(ARCH, 64, 2, 1 << 15),
        gpu_memory_probes.chase_global(ARCH, "l1", 64),
        gpu_memory_probes.chase_global(ARCH, "l2", 64),
        gpu_memory_probes.chase_shared(ARCH),
    ]


def run(probe, given, rounds, before=0):
    """Return what the probe writes on the CPU."""
    from anatune.measure.emulate.emulator import EmulatedKernel, compiler

    try:
        compiler()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    arrays = {buffer.tensor: np.zeros(buffer.shape, buffer.dtype) for buffer in probe.kernel.parameters}
    arrays["input"] = given.reshape(arrays["input"].shape).copy()
    arrays["rounds"][:2] = rounds, before
    arrays["result"][...] = 77
    EmulatedKernel(probe.kernel).run(arrays)
    assert np.array_equal(arrays["input"].reshape(-1), given.reshape(-1))
    return arrays["result"]


@pytest.mark.parametrize("probe", small_probes(), ids=lambda probe: probe.kernel.name)
def test_probes_compute_what_is_checked(probe):
    rng = np.random.default_rng(1)
    before = 5 if probe.kind == "chase_global" else 0
    given = chain(probe.facts["lines"], 64, rng) if before else probe_input(probe, rng, checked=True)
    result = run(probe, given, ROUNDS, before)
    assert check_result(probe, given, ROUNDS, result, before=before) is None
    again = "expected" if probe.kind != "copy" else None  # a copy of more rounds begins like one of fewer
    problem = check_result(probe, given, ROUNDS - 1, result, before=before)
    assert problem is None if again is None else again in problem
    damaged = result.copy()
    damaged.reshape(-1)[0] += 1
    assert "1 of" in check_result(probe, given, ROUNDS, damaged, before=before)


def test_link_makes_addresses():
    probe = gpu_memory_probes.link(ARCH, 32)
    offsets = chain(32, 32, np.random.default_rng(2))
    result = run(probe, offsets, 1)
    words = LINE_BYTES // 8
    assert len(set((result - offsets)[::words].tolist())) == 1


@pytest.mark.parametrize(("lines", "visited"), [(64, 64), (64, 16), (4096, 8)])
def test_a_chain_visits_every_line_once(lines, visited):
    offsets = chain(lines, visited, np.random.default_rng(3))
    at, seen = 0, []
    for _ in range(visited):
        seen.append(at)
        at = int(offsets[at // 8])
    assert at == 0
    assert sorted(seen) == [line * (lines // visited) * LINE_BYTES for line in range(visited)]


def test_timed_operands_change_bits_and_stay_finite():
    rng = np.random.default_rng(4)
    probe = gpu_probes.make_multiply_add(ARCH, "float32", 2, 1, 1)
    values = probe_input(probe, rng, checked=False)
    assert values[0] == -1.0
    assert np.all((values[2:] >= 0.25) & (values[2:] < 1.0))
    halves = probe_input(gpu_probes.make_multiply_add(ARCH, "float16", 2, 1, 1), rng, checked=False).view(np.float16)
    assert np.all(halves[:2] == -1.0)
    for dtype, kind in (("float16", np.float16), ("tfloat32", np.float32)):
        operands = probe_input(gpu_probes.make_matrix_unit("sm_80", dtype, 2, 2, 1), rng, checked=False).view(kind)
        assert np.all(np.isfinite(operands))
        assert np.unique(operands).size > operands.size // 2
    wide = probe_input(gpu_probes.make_matrix_unit("sm_80", "bfloat16", 2, 2, 1), rng, checked=False) << 16
    assert np.all(np.isfinite(wide.view(np.float32)))


def test_the_set_fits_the_device():
    """Probes by architecture; what is read from L2 fits there, what is read from DRAM does not."""
    old = probe_set("sm_60", 56, 2048, 4 << 20)
    assert "fma_float16" in old
    assert "fma_int8" not in old
    new = probe_set("sm_90", 132, 2048, 50 << 20)
    assert matrix_name("bfloat16", 8, 8) in new
    assert sweep_name(8, 32) in new
    assert new["l2_read"].probe.facts["num_bytes"] == 16 << 20
    assert new["dram_read"].probe.facts["num_bytes"] == 1 << 30
    assert new["dram_copy"].reads == "dram_read"
    assert new["dram_latency"].is_cold
    for plan in (*old.values(), *new.values()):
        assert plan.probe.kernel.block <= 1024
        assert plan.probe.kernel.shared_bytes <= 49152
        assert plan.probe.work > 0


def compiled(probe, arch):
    pytest.importorskip("cuda.bindings")
    from anatune.codegen.cuda.nvrtc import compile_cuda

    try:
        return compile_cuda(probe.kernel.source, arch, name=probe.kernel.name)
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_86", "sm_90"])
def test_probes_compile_without_spills_and_keep_their_work(arch):
    """16 bytes of machine code an instruction: the unrolled body is there; nothing is spilled; blocks can launch."""
    body = {"multiply_add": 128, "matrix_unit": 32, "chase_global": 32, "chase_shared": 32, "read_global": 8}
    done = set()
    for name, plan in probe_set(arch, 4, 2048, 1 << 22).items():
        probe = plan.probe
        if name.startswith("fma_") and name[4:5].isdigit() and name not in (sweep_name(1, 4), sweep_name(8, 32)):
            continue
        facts = compiled(probe, arch).facts
        assert facts.spill_bytes == 0
        assert facts.local_bytes == 0
        assert facts.registers * probe.kernel.block <= 65536
        assert facts.code_bytes >= 16 * body.get(probe.kind, 4)
        done.add(probe.kind)
    assert ("matrix_unit" in done) == (arch != "sm_70")
    for probe in (gpu_probes.spin(arch), gpu_probes.make_empty(arch, 256, 4), gpu_memory_probes.link(arch, 64)):
        compiled(probe, arch)
