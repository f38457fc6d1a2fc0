"""Calibration: the sampling against a false clock, the numbers in the spec, the table and its prediction."""

import math

import msgspec
import pytest

import anatune
from anatune.core.hardware.files import hardware, load_spec_file, spec_to_toml
from anatune.errors import RunError
from anatune.measure.cpu.calibration import calibrate as module
from anatune.measure.cpu.calibration import machine as machine_module
from anatune.measure.cpu.calibration.calibrate import finish_spec
from anatune.measure.cpu.calibration.numbers import Numbers
from anatune.measure.cpu.calibration.samples import ProbeTimes, Quantity, Samples, sample_quantities, snap
from anatune.measure.cpu.calibration.spec import calibrated_spec
from anatune.measure.cpu.calibration.tiles import (
    LEAST_SHARE,
    MeasuredTile,
    RegisterTile,
    agreement,
    candidate_tiles,
    fits_registers,
    predicted_share,
    tile_depth,
)

CLOCK = 3.5e9


class FalseMachine:
    """A clock, probes and quantities on a machine that is busy in some rounds and halves its clock half-way."""

    def __init__(self, *, busy=lambda tick: False, slow=lambda tick: False):
        self.now = 0.0
        self.tick = 0
        self.busy, self.slow = busy, slow

    def spend(self, seconds):
        self.tick += 1
        self.now += seconds
        return seconds

    def factor(self):
        return 2.0 if self.slow(self.tick) else 1.0

    def probes(self):
        noise = 1.5 if self.busy(self.tick) else 1.0
        return ProbeTimes(1e-4 * self.factor(), self.spend(1e-4 * self.factor() * noise))

    def quantity(self, name, seconds):
        def run():
            noise = 3.0 if self.busy(self.tick) else 1.0
            return self.spend(seconds * self.factor() * noise)

        return Quantity(name, run)

    def sample(self, quantities, **options):
        samples = Samples()
        options = {"budget_s": 1.0, "enough": 10} | options
        sample_quantities(quantities, self.probes, samples, clock=lambda: self.now, **options)
        return samples


def test_quiet_samples_make_the_median():
    machine = FalseMachine(busy=lambda tick: tick % 10 < 4)
    samples = machine.sample([machine.quantity("a", 3e-4), machine.quantity("b", 1e-3), machine.quantity("c", 2e-4)])
    assert samples.names == ["a", "b", "c"]
    assert samples.seconds("a") == pytest.approx(3e-4)
    assert samples.steady_seconds("b") == pytest.approx(1e-3)
    assert samples.least_quiet() >= 10
    assert 0.0 < samples.quiet_share < 1.0
    assert not samples.is_doubtful("c")


def test_a_slower_clock_cancels_or_is_left_out():
    machine = FalseMachine(slow=lambda tick: tick > 60)
    samples = machine.sample([machine.quantity("a", 3e-4)], enough=1000, budget_s=0.1)
    assert samples.fma_s == pytest.approx(1e-4)
    assert samples.steady_seconds("a") == pytest.approx(3e-4)


def test_without_quiet_samples_values_are_doubtful():
    samples = Samples()
    quiet, loud = ProbeTimes(1e-4, 1e-4), ProbeTimes(2e-4, 2e-4)
    for _ in range(20):
        samples.add("steady", 1e-3, quiet, quiet)
        samples.add("disturbed", 2e-3, loud, quiet)
    assert samples.is_doubtful("disturbed")
    assert not samples.is_doubtful("steady")
    assert samples.seconds("disturbed") == 2e-3


def test_sampling_ends_with_the_budget_after_the_least_rounds():
    machine = FalseMachine()
    shares = []
    samples = machine.sample([machine.quantity("a", 1.0)], budget_s=0.5, enough=100, progress=shares.append)
    assert machine.now >= 3.0
    assert samples.best_seconds("a") == 1.0
    assert shares[-1] == 1.0
    sample_quantities([], machine.probes, samples, budget_s=1.0, enough=1)


@pytest.mark.parametrize(("value", "found"), [(1.05, 1.0), (0.52, 0.5), (1.4, None), (3.9, 4.0)])
def test_snapped(value, found):
    assert snap(value, (0.25, 0.5, 1.0, 2.0, 4.0)) == found


# ---- the spec --------------------------------------------------------------------------------------------------


def numbers(**changes):
    """A CPU of one 512-bit multiply-add a cycle at 3.5 GHz."""
    values = {
        "integer_clock_hz": 1.01 * CLOCK,
        "fma_flop_per_s": 32 * CLOCK,
        "all_fma_flop_per_s": 64 * CLOCK,
        "half_share": 1.0,
        "fma_latency_s": 4.1 / CLOCK,
        "store_bytes_s": 31.9 * CLOCK,
        "broadcasts_s": 1.9 * CLOCK,
        "fill_bytes_s": {"l1": 58.0 * CLOCK, "l2": 31.0 * CLOCK, "l3": 20.0 * CLOCK, "dram": 2e10},
        "latency_s": {"l1": 4 / CLOCK, "l2": 14 / CLOCK, "l3": 50 / CLOCK, "dram": 1e-7},
        "all_dram_bytes_s": 4e10,
        "call_s": 5 / CLOCK,
        "parallel_start_s": 3e-6,
        "function_call_s": 2e-7,
    }
    return Numbers(**(values | changes))


def detected():
    """The host as `anatune hw detect` sees it: clock and latencies are guesses."""
    spec = hardware("ryzen_7950x")
    return msgspec.structs.replace(spec, name="host", aliases=())


def test_instructions_that_sum_products_are_measured():
    dots = {"vdpbf16ps": (31.0 * 2 * CLOCK, 6.1 / CLOCK), "vpdpbusd": (2.6 * 32 * CLOCK, 4.0 / CLOCK)}
    found = numbers(dots=dots, doubtful=frozenset({"vpdpbusd"}))
    spec, notes = calibrated_spec(detected(), found, {RegisterTile(14, 2, 1): 0.98}, "2026-11-22")
    assert (spec.vdpbf16ps.rate, spec.vdpbf16ps.latency_cycles, spec.vdpbf16ps.unverified) == (2.0, 6, ())
    assert (spec.vpdpbusd.rate, spec.vpdpbusd.unverified) == (2.6, ("rate",))
    assert "vdpbf16ps reaches 1.94 times the float32 peak" in notes


TILE_CYCLES = {"product_cycles": 17.0, "latency_cycles": 51.96, "load_cycles": 8.5, "store_cycles": 16.0}


def test_tiles_are_measured_and_the_model_takes_them(tmp_path):
    spec = hardware("xeon_8480")
    tiles = {name: cycles / CLOCK for name, cycles in TILE_CYCLES.items()}
    found = numbers(tiles=tiles, doubtful=frozenset({"load_cycles"}))
    # slower clock of two units: only ratios count
    measured, notes = calibrated_spec(spec, found, {}, "2026-11-26")
    clock = measured.compute.clock_hz
    for name, cycles in TILE_CYCLES.items():
        assert getattr(measured.tiles, name) == pytest.approx(cycles * clock / CLOCK, abs=0.06)
    assert measured.tiles.unverified == ("load_cycles",)
    assert any("AMX: a tile product every" in note for note in notes)
    path = tmp_path / "host.toml"
    path.write_text(spec_to_toml(measured))
    assert load_spec_file(path) == measured
    workload = anatune.matmul(512, 512, 512, dtype="bfloat16")
    slow = msgspec.structs.replace(spec, tiles=msgspec.structs.replace(measured.tiles, product_cycles=64.0))
    took = [
        anatune.plan(workload, cpu, threads=1, template="amx", top_k=1).predictions[0].time_s for cpu in (spec, slow)
    ]
    assert took[1] > 2.5 * took[0]


def test_a_spec_without_tiles_or_permission_keeps_its_numbers(monkeypatch):
    spec, notes = calibrated_spec(hardware("xeon_8480"), numbers(), {}, "2026-11-26")
    assert spec.tiles is msgspec.UNSET
    assert not any("AMX" in note for note in notes)

    def refuse(features):
        assert tuple(features) == ("amx-bf16", "amx-int8")
        raise RunError("AMX's tiles: Linux refuses this process their registers")

    monkeypatch.setattr(machine_module, "allow_tiles", refuse)
    machine = object.__new__(machine_module.Machine)
    machine.hardware, machine.left_out = spec, []
    assert not machine._has_tiles()
    assert machine.left_out == ["not measured: AMX's tiles: Linux refuses this process their registers"]


@pytest.mark.parametrize(
    ("rates", "held"),
    [
        ({16: 7e10, 32: 6.8e10, 64: 2.1e10, 128: 2e10}, 32),  # a quarter of 128 MB is this machine's
        ({16: 2.1e10, 32: 2e10, 64: 2e10, 128: 2e10}, 11),  # the first walk misses already: what is before it
        ({16: 7e10, 32: 6.8e10, 64: 6.5e10, 128: 2.1e10}, 128),  # a walk as large as the cache is no evidence
        ({}, 128),
    ],
)
def test_part_of_a_shared_l3_is_measured(rates, held):
    cache = msgspec.structs.replace(detected().l3, size_bytes=128 << 20, ways=16)
    spec = msgspec.structs.replace(detected(), l3=cache)
    found = numbers(footprint_bytes_s={size << 20: rate for size, rate in rates.items()})
    spec, notes = calibrated_spec(spec, found, {RegisterTile(14, 2, 1): 0.98}, "2026-11-22")
    assert spec.l3.size_bytes >> 20 == held
    assert any("MB of L3" in note for note in notes) == (held < 128)


def test_an_l3_as_slow_as_memory_keeps_its_size():
    cache = msgspec.structs.replace(detected().l3, size_bytes=128 << 20, ways=16)
    slow = {"l1": 58.0 * CLOCK, "l2": 31.0 * CLOCK, "l3": 2.1e10, "dram": 2e10}
    found = numbers(fill_bytes_s=slow, footprint_bytes_s={16 << 20: 2.1e10, 64 << 20: 2e10})
    spec, _ = calibrated_spec(msgspec.structs.replace(detected(), l3=cache), found, {}, "2026-11-22")
    assert spec.l3.size_bytes == 128 << 20


def test_measured_numbers_replace_detected_ones(tmp_path):
    spec, notes = calibrated_spec(
        detected(),
        numbers(),
        {RegisterTile(14, 2, 1): 0.98, RegisterTile(1, 1, 1): 0.3, RegisterTile(16, 2, 1): 0.95},
        "2026-11-21",
    )
    compute = spec.compute
    assert compute.clock_hz == CLOCK
    assert compute.fma_per_cycle == 1.0
    assert compute.fp32_peak_flop_per_s == pytest.approx(compute.num_cores * 32 * CLOCK)
    assert compute.fma_latency_cycles == 4
    assert (compute.loads_per_cycle, compute.stores_per_cycle, compute.broadcasts_per_cycle) == (0.91, 0.5, 1.9)
    assert (spec.l2.bandwidth_bytes_per_cycle, spec.l2.latency_cycles) == (31.0, 14.0)
    assert (spec.dram.core_bandwidth_bytes_per_s, spec.dram.bandwidth_bytes_per_s) == (2e10, 4e10)
    assert (spec.launch.microkernel_call_cycles, spec.launch.parallel_start_s) == (5.0, 3e-6)
    assert compute.reachable_fraction == pytest.approx((0.98 + 0.3 + 0.95) / 3, abs=1e-3)
    assert compute.unverified == ("vector_ops_per_cycle",)
    assert spec.dram.unverified == ()
    assert set(spec.l1.unverified) == {"ways"}
    assert "anatune hw calibrate, 2026-11-21" in compute.source
    assert any("as detected" in note for note in notes)
    path = tmp_path / "host.toml"
    path.write_text(spec_to_toml(spec))
    assert load_spec_file(path) == spec


def test_multiply_adds_a_cycle_follow_the_clock():
    """A CPU that the detection gives one unit has two: the clock stays, the peak doubles."""
    spec, notes = calibrated_spec(detected(), numbers(fma_flop_per_s=64 * CLOCK), {}, "today")
    assert spec.compute.fma_per_cycle == 2.0
    assert spec.compute.clock_hz == CLOCK
    assert "fma_per_cycle" not in spec.compute.unverified
    assert any("instead of 1" in note for note in notes)


def test_a_rate_between_usual_numbers_stays_unverified():
    spec, notes = calibrated_spec(detected(), numbers(fma_flop_per_s=1.4 * 32 * CLOCK), {}, "today")
    assert spec.compute.fma_per_cycle == 2.0
    assert any("unverified: calibrate again" in note for note in notes)
    assert {"fma_per_cycle", "reachable_fraction"} <= set(spec.compute.unverified)


def test_what_a_neighbour_takes_lowers_the_reachable_share_not_the_peak():
    spec, _ = calibrated_spec(
        detected(), numbers(fma_flop_per_s=0.8 * 64 * CLOCK), {RegisterTile(14, 2, 1): 0.9}, "today"
    )
    assert spec.compute.fp32_peak_flop_per_s == pytest.approx(spec.compute.num_cores * 64 * CLOCK, rel=0.03)
    assert spec.compute.reachable_fraction == pytest.approx(0.72, rel=0.04)


def test_doubtful_samples_stay_unverified():
    doubts = frozenset({"dram_load", "l2_chase", "clock"})
    spec, _ = calibrated_spec(detected(), numbers(doubtful=doubts), {}, "today")
    assert "core_bandwidth_bytes_per_s" in spec.dram.unverified
    assert "latency_cycles" in spec.l2.unverified
    assert "clock_hz" in spec.compute.unverified


def test_busy_cores_never_make_the_socket_slower_than_a_core():
    spec, _ = calibrated_spec(detected(), numbers(all_dram_bytes_s=1e10), {}, "today")
    assert spec.dram.bandwidth_bytes_per_s == spec.dram.core_bandwidth_bytes_per_s


# ---- tiles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ryzen_7950x", "ryzen_3700x", "cortex_a72", "xeon_gold_6230r"])
def test_candidates_go_past_the_register_file(name):
    spec = hardware(name)
    tiles = candidate_tiles(spec)
    assert len(set(tiles)) == len(tiles)
    assert not all(fits_registers(tile, spec) for tile in tiles)
    assert RegisterTile(1, 1, 8) in tiles
    for tile in tiles:
        depth = tile_depth(tile, spec)
        assert depth % tile.unroll == 0
        assert 4 * depth * (tile.rows + tile.vectors * spec.fp32_lanes) <= spec.l1.size_bytes
        assert 0.0 < predicted_share(tile, spec) <= 1.0


def test_prediction_knows_registers_and_latency():
    spec = hardware("xeon_gold_6230r")
    good, spilling, short = RegisterTile(14, 2, 1), RegisterTile(18, 2, 1), RegisterTile(1, 1, 1)
    assert predicted_share(good, spec) > LEAST_SHARE
    assert predicted_share(spilling, spec) < LEAST_SHARE
    assert predicted_share(short, spec) < LEAST_SHARE


def test_agreement():
    measured = [
        MeasuredTile(RegisterTile(8, 2, 1), 0.95, 0.93, 0),
        MeasuredTile(RegisterTile(9, 2, 1), 0.95, 0.70, 0),
        MeasuredTile(RegisterTile(16, 2, 1), 0.50, 0.90, 30),
        MeasuredTile(RegisterTile(1, 1, 1), 0.20, 0.20, 0),
    ]
    found = agreement(measured)
    assert (found.precision, found.recall) == (0.5, 0.5)
    assert [entry.tile for entry in found.missed] == [RegisterTile(9, 2, 1)]
    assert [entry.tile for entry in found.promised] == [RegisterTile(16, 2, 1)]
    empty = agreement([])
    assert (empty.precision, empty.recall) == (1.0, 1.0)


def test_finished_keeps_all_tiles_and_judges_both_sets():
    shares = {tile: (0.95 if fits_registers(tile, detected()) else 0.5) for tile in candidate_tiles(detected())}
    result = finish_spec(detected(), numbers(), shares, {}, 0.9, "today")
    assert len(result.tiles) == len(shares)
    assert (
        result.fitting.num_good == result.agreement.num_good == sum(fits_registers(tile, detected()) for tile in shares)
    )
    assert result.agreement.precision == 1.0
    assert not math.isnan(result.fitting.recall)


def test_good_tiles_are_classes_of_the_spec(tmp_path):
    shares = {RegisterTile(rows, 2, 1): share for rows, share in ((1, 0.4), (8, 0.9712), (9, 0.98), (16, 0.5))}
    spec = finish_spec(detected(), numbers(), shares | {RegisterTile(24, 1, 8): 0.97}, {}, 0.9, "today").spec
    table = spec.microkernels
    assert table.classes == {(2, 1): {8: 0.97, 9: 0.98}, (1, 8): {24: 0.97}}
    assert (table.source, table.unverified, table.least_share) == ("anatune hw calibrate, today", (), LEAST_SHARE)
    (tmp_path / "host.toml").write_text(spec_to_toml(spec))
    assert load_spec_file(tmp_path / "host.toml") == spec
    few = numbers(doubtful=frozenset({"tile_8_2_1"}))
    assert finish_spec(detected(), few, shares, {}, 0.9, "today").spec.microkernels.unverified == ("tiles",)
    rest = numbers(doubtful=frozenset({"tile_16_2_1"}))
    assert finish_spec(detected(), rest, shares, {}, 0.9, "today").spec.microkernels.unverified == ()
    assert finish_spec(spec, numbers(), {RegisterTile(1, 1, 1): 0.2}, {}, 0.9, "today").spec.microkernels is None


# ---- the present machine ---------------------------------------------------------------------------------------


def test_a_short_calibration_of_this_machine(monkeypatch):
    pytest.importorskip("tvm")
    monkeypatch.setattr(module, "candidate_tiles", lambda spec: [RegisterTile(4, 2, 1), RegisterTile(1, 1, 2)])
    stages = []
    result = module.calibrate(minutes=1e-4, progress=lambda stage, share: stages.append((stage, share)))
    assert [stage for stage in dict(stages)][:2] == ["building probes", "one core"]
    assert all(0.0 <= share <= 1.0 for _, share in stages)
    assert {entry.tile for entry in result.tiles} == {RegisterTile(4, 2, 1), RegisterTile(1, 1, 2)}
    assert 0.0 < result.spec.compute.fp32_peak_flop_per_s < 1e14
    assert result.spec.launch is not None
