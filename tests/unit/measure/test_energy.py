"""Energy counters of pretended machines: what is summed, overflows, rights that are missing, samples too short."""

import os
import types

import pytest

from anatune.core.trial import Measurement, Outcome
from anatune.measure.cuda import detect
from anatune.measure.energy import Metered, cpu_counter, gpu_counter
from anatune.records.export import flat_row
from anatune.records.merge import merge
from anatune.records.store import RecordStore
from anatune.report.text import join_lines
from anatune.report.tuning import result_lines
from tests.unit.tuning.fakes import ran, session

RANGE = 262_143_328_850


@pytest.fixture
def powercap(tmp_path):
    """Return the folder of a machine with two packages, a part of one, a laptop's psys and the other way to read."""
    for folder, name, joules in (
        ("intel-rapl:0", "package-0", 100),
        ("intel-rapl:1", "package-1", 50),
        ("intel-rapl:0:0", "core", 60),
        ("intel-rapl:2", "psys", 500),
        ("intel-rapl-mmio:0", "package-0", 100),
    ):
        place = tmp_path / folder
        place.mkdir()
        (place / "name").write_text(f"{name}\n")
        (place / "max_energy_range_uj").write_text(f"{RANGE}\n")
        (place / "energy_uj").write_text(f"{joules * 1_000_000}\n")
    (tmp_path / "intel-rapl").mkdir()
    return tmp_path


def set_joules(powercap, package, joules):
    (powercap / f"intel-rapl:{package}" / "energy_uj").write_text(f"{round(joules * 1e6)}\n")


def test_packages_are_added_up_and_nothing_twice(powercap):
    counter = cpu_counter(powercap)
    assert (counter.name, counter.joules()) == ("package-0 + package-1", 0.0)
    set_joules(powercap, 0, 103)
    set_joules(powercap, 1, 50.5)
    assert counter.joules() == pytest.approx(3.5)
    assert counter.joules() == pytest.approx(3.5)


def test_counters_overflow(powercap):
    set_joules(powercap, 0, RANGE * 1e-6 - 1)
    counter = cpu_counter(powercap)
    set_joules(powercap, 0, 2)
    assert counter.joules() == pytest.approx(3.0, abs=1e-5)
    set_joules(powercap, 0, 1)  # once around
    assert counter.joules() == pytest.approx(3.0 + RANGE * 1e-6 - 1, abs=1e-5)


def test_without_a_counter_there_is_none(powercap, tmp_path):
    assert cpu_counter(tmp_path / "none") is None
    counter = cpu_counter(powercap)
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert counter.joules() is None
    assert cpu_counter(powercap) is None
    (powercap / "intel-rapl:1" / "energy_uj").write_text("many")
    assert cpu_counter(powercap) is None
    for number in (0, 1):
        (powercap / f"intel-rapl:{number}" / "name").write_text("dram")
    assert cpu_counter(powercap) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_counters_that_only_root_may_read(powercap):
    (powercap / "intel-rapl:0" / "energy_uj").chmod(0o000)
    assert cpu_counter(powercap) is None


class FakeCounter:
    """Counts 50 W of a pretended clock."""

    name, step_s = "package-0", 1e-3

    def __init__(self):
        self.now = 0.0
        self.is_lost = False

    def joules(self):
        return None if self.is_lost else 50.0 * self.now

    def clock(self):
        return self.now

    def kernel(self, seconds):
        def run(count):
            self.now += count * seconds
            return count * seconds

        return run


def test_samples_that_are_long_enough_give_the_energy_of_a_run():
    counter = FakeCounter()
    kernel = Metered(counter.kernel(1e-4), counter, counter.clock)
    assert kernel(20) == pytest.approx(2e-3)  # two steps of the counter
    assert kernel.energy_j is None
    assert kernel(120) == pytest.approx(12e-3)
    assert kernel.energy_j == pytest.approx(50 * 1e-4)
    counter.is_lost = True
    kernel(120)
    assert kernel.energy_j == pytest.approx(50 * 1e-4)


def test_a_counter_that_stands_still_counts_nothing():
    counter = FakeCounter()
    counter.joules = lambda: 7.0  # as some virtual machines show it
    kernel = Metered(counter.kernel(1e-4), counter, counter.clock)
    kernel(500)
    assert kernel.energy_j is None


def nvml(device_mj=5_000_000):
    """Return a module as pynvml, of one GPU on the bus at 17."""
    module = types.ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})
    module.energy_mj = device_mj

    def handle(address):
        if address != b"00000000:17:00.0":
            raise module.NVMLError("not found")
        return "device"

    def total(device):
        if module.energy_mj is None:
            raise module.NVMLError("not supported")
        return module.energy_mj

    module.nvmlInit = lambda: None
    module.nvmlDeviceGetHandleByPciBusId, module.nvmlDeviceGetTotalEnergyConsumption = handle, total
    return module


def test_gpus():
    module = nvml()
    counter = gpu_counter("00000000:17:00.0", module)
    module.energy_mj += 2_500
    assert (counter.name, counter.joules()) == ("gpu 00000000:17:00.0", pytest.approx(2.5))
    module.energy_mj = None
    assert counter.joules() is None
    assert gpu_counter("00000000:18:00.0", module) is None
    assert gpu_counter("00000000:17:00.0", nvml(None)) is None  # older than Volta
    assert gpu_counter("00000000:17:00.0", types.SimpleNamespace(NVMLError=ValueError)) is None


def test_a_gpu_is_found_by_its_address_on_the_bus(monkeypatch):
    asked = []
    backend = types.SimpleNamespace(attribute=lambda index, name: {"PCI_BUS_ID": 0x17}.get(name, 0))
    monkeypatch.setattr(detect, "make_backend", lambda name: backend)
    monkeypatch.setattr(detect, "gpu_counter", asked.append)
    detect.device_counter(1)
    assert asked == ["00000000:17:00.0"]


def test_a_session_tells_its_energy_and_keeps_that_of_its_trials(tmp_path):
    counter = FakeCounter()
    measured = Measurement(Outcome.OK, times_s=(1e-3,) * 3, reference_times_s=(1e-3,) * 3, energy_j=0.0125)

    def progress(told):
        counter.now += 2.0

    path = tmp_path / "tuning.sqlite"
    script = {0: measured, 1: ran(1.2e-3), 2: ran(1.3e-3)}
    again = {"compare": lambda measurer, schedules, budget_s: [measured, ran(1.2e-3), ran(1.3e-3)][: len(schedules)]}
    result = session(3, script=script, progress=progress, counters=[counter], records=path, **again).run()
    assert result.energy_j == pytest.approx(50 * 2.0 * 5)
    assert result.energy_of == ("package-0",)
    told = result.to_dict()
    assert (told["energy_j"], told["trials"][0]["measurement"]["energy_j"]) == (result.energy_j, 0.0125)
    assert "energy of whole devices" in join_lines(result_lines(result, width=200))
    assert "12.50 mJ for one run of the best; 500.0 J for the session (package-0)" in join_lines(
        result_lines(result, width=200)
    )
    other = tmp_path / "other.sqlite"
    with RecordStore(path) as mine, RecordStore(other) as yours:
        merge(mine, yours)
        records = yours.trials()
    assert [one.trial.measurement.energy_j for one in records[:3]] == [0.0125, None, None]
    assert [flat_row(one)["energy_j"] for one in records[:2]] == [0.0125, None]


def test_a_session_without_counters_says_nothing_of_energy():
    result = session(2).run()
    assert (result.energy_j, result.energy_of) == (None, ())
    assert "energy" not in join_lines(result_lines(result, width=200))
