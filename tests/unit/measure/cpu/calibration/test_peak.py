"""Units, clock and latency of a core, solved for together from rates that drift, are shared, or are throttled."""

import msgspec
import pytest

from anatune.measure.cpu.calibration import peak as module
from anatune.measure.cpu.calibration.peak import Core, measured_peak, solve_core
from anatune.measure.cpu.detect import detect_cpu


@pytest.mark.parametrize("integer_ghz", [1.2, 2.6, 3.7, 5.5])
@pytest.mark.parametrize("vector_share", [1.0, 0.8, 0.7])
@pytest.mark.parametrize(("units", "latency"), [(0.5, 4), (1, 7), (1, 4), (2, 4), (2, 5), (4, 4)])
def test_a_quiet_core_at_any_clock(units, latency, vector_share, integer_ghz):
    clock = vector_share * integer_ghz * 1e9
    core = solve_core(units * clock, latency / clock, integer_ghz * 1e9, latency)
    assert (core.fma_per_cycle, core.fma_latency_cycles, core.is_sure) == (units, latency, True)
    assert core.clock_hz == pytest.approx(clock)


@pytest.mark.parametrize("taken", [0.02, 0.13, 0.2, 0.4])
def test_a_neighbour_takes_neither_a_unit_nor_the_clock(taken):
    core = solve_core((1 - taken) * 2 * 3e9, 4.02 / 3e9, 3e9, 4)
    assert core.fma_per_cycle == 2
    assert core.clock_hz == pytest.approx(3e9, rel=0.02)
    assert core.is_sure == (taken < 0.25)


@pytest.mark.parametrize("taken", [0.45, 0.5, 0.55, 0.7])
def test_a_neighbour_that_takes_half_leaves_the_units_of_the_microarchitecture_in_doubt(taken):
    core = solve_core((1 - taken) * 2 * 3e9, 4 / 3e9, 3e9, 4, least_units=2)
    assert (core.fma_per_cycle, core.is_sure) == (2, False)
    assert core.clock_hz == pytest.approx(3e9)


@pytest.mark.parametrize("is_sure", [True, False])
def test_units_that_are_not_sure_are_unverified(is_sure, monkeypatch):
    pytest.importorskip("tvm")
    monkeypatch.setattr(module, "_SECONDS", 0.01)
    monkeypatch.setattr(module, "solve_core", lambda *rates: Core(2.0, 3e9, 4.0, is_sure))
    assert ("fma_per_cycle" in measured_peak(detect_cpu()).compute.unverified) == (not is_sure)


@pytest.mark.parametrize("usual", [4, 5])
def test_a_latency_that_was_guessed_is_corrected(usual):
    core = solve_core(2 * 3e9, 5 / 3e9, 3e9, usual)
    assert (core.fma_per_cycle, core.fma_latency_cycles) == (2, 5)
    assert core.clock_hz == pytest.approx(3e9)


@pytest.mark.parametrize(
    ("fma_per_s", "latency_s", "integer_hz"),
    [
        (6.10e9, 4.0 / 3.05e9, 3.05e9),  # what was one unit at 6.1 GHz
        (6.10e9, 4.9 / 3.8e9, 3.8e9),
        (5.13e9, 4.03 / 3.0e9, 3.0e9),
        (7.28e9, 4.0 / 3.64e9, 3.64e9),
    ],
)
def test_samples_of_a_drifting_guest_of_granite_rapids(fma_per_s, latency_s, integer_hz):
    core = solve_core(fma_per_s, latency_s, integer_hz, 4)
    assert (core.fma_per_cycle, core.fma_latency_cycles) == (2, 4)
    assert 0.7 * integer_hz <= core.clock_hz <= 1.1 * integer_hz


@pytest.mark.parametrize("fma_per_s", [1e6, 1e9, 7e9, 1e13])
@pytest.mark.parametrize("latency_s", [1e-11, 1e-9, 1e-6])
def test_no_measurement_makes_a_clock_beyond_the_integer_one(fma_per_s, latency_s):
    core = solve_core(fma_per_s, latency_s, 3e9, 4)
    assert core.fma_per_cycle in (0.25, 0.5, 1, 2, 4)
    assert core.clock_hz <= 1.1 * 3e9 or not core.is_sure


def test_the_present_machine(monkeypatch):
    pytest.importorskip("tvm")
    monkeypatch.setattr(module, "_SECONDS", 0.01)
    detected = detect_cpu()
    spec = measured_peak(detected)
    compute = spec.compute
    assert "clock_hz" not in compute.unverified
    assert compute.source.startswith("clock and multiply-adds: anatune hw detect, ")
    assert compute.source.endswith(detected.compute.source)
    assert msgspec.structs.replace(spec, compute=detected.compute) == detected
