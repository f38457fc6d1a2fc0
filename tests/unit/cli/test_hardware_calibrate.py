"""``anatune hw calibrate`` with a calibration that takes no time."""

import json

import pytest

from anatune.cli.main import main
from anatune.core.hardware.files import hardware
from anatune.measure.cpu.calibration import calibrate as module
from anatune.measure.cpu.calibration.tiles import RegisterTile
from anatune.tuning.calibration import Learned
from tests.unit.measure.cpu.calibration.test_calibrate import detected, numbers


@pytest.fixture
def instant(monkeypatch, tmp_path):
    """Replace the measuring; specs are written to an empty folder, which is returned."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def calibrate(*, minutes, progress):
        progress("one core", 0.5)
        return module.finish_spec(detected(), numbers(), {RegisterTile(14, 2, 1): 0.98}, {}, minutes, "today")

    monkeypatch.setattr(module, "calibrate", calibrate)
    return tmp_path


def no_nests(hardware, records, **settings):
    return Learned(records, 0, 0, None, None)


def test_the_host_spec_is_written_and_found(instant, capsys, monkeypatch):
    monkeypatch.setattr("anatune.tuning.calibration.learn_from_nests", no_nests)
    assert main(["hw", "calibrate", "--minutes", "0.5"]) == 0
    out, err = capsys.readouterr()
    assert "use it as --hw host" in out
    assert "precision" in out
    assert "one core" in err
    assert "best register tile: 14 rows x 2 vectors, 1 iterations unrolled, 98.0 % of the peak" in out
    assert "1 microkernels reach 80 % of the peak: 14 to 14 rows of 2 vectors" in out
    assert hardware("host").compute.clock_hz == 3.5e9
    assert hardware("host").microkernels.tiles == ((14, 2, 1, 0.98),)
    assert main(["hw", "show", "host"]) == 0
    assert "[14, 2, 1, 0.98]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "seconds"), [("--minutes 1", 75), ("--minutes 1 --no-nests", 35), ("--minutes 0.9 --print", 33)]
)
def test_how_long_it_takes_is_said_first(instant, capsys, monkeypatch, words, seconds):
    monkeypatch.setattr("anatune.numerics._jit.first_compilation_s", lambda room: {"cpu": 10.0}[room])
    monkeypatch.setattr("anatune.tuning.calibration.learn_from_nests", no_nests)  # of another processor than this one
    assert main(["hw", "calibrate", *words.split()]) == 0
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith(f"calibrate: this machine's CPU, about {seconds + 10} s (--minutes ")
    assert any("one core" in line for line in others)


def test_print_writes_nothing(instant, capsys):
    assert main(["hw", "calibrate", "--print"]) == 0
    out, _ = capsys.readouterr()
    assert "[launch]" in out
    assert not list(instant.rglob("*.toml"))


def test_json(instant, capsys):
    assert main(["hw", "calibrate", "--print", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["path"] is None
    assert answer["cpu"]["compute"]["clock_hz"] == 3.5e9
    assert answer["tiles"][0]["tile"] == [14, 2, 1]
    assert answer["prediction"]["all"]["good"] == 1


def test_minutes_must_be_positive(instant, capsys):
    assert main(["hw", "calibrate", "--minutes", "0"]) == 2
    assert "minutes" in capsys.readouterr().err


@pytest.fixture
def instant_gpu(monkeypatch, tmp_path):
    """Replace the measuring of a GPU."""
    from anatune.measure.cuda.calibration import calibrate as gpu_module
    from tests.unit.measure.cuda.calibration.test_calibrate import false_spec, measured
    from tests.unit.measure.cuda.calibration.test_calibrate import numbers as gpu_numbers

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def calibrate_gpu(index, *, minutes, progress):
        progress("sampling", 0.5)
        found = gpu_numbers(clock_hz=1.5e9, rates={"fma_4_16": measured(1.4e12)})
        spec, notes = gpu_module.calibrated_gpu_spec(false_spec(), found, "2026-11-22")
        return gpu_module.GpuCalibration(spec, found, notes)

    monkeypatch.setattr(gpu_module, "calibrate_gpu", calibrate_gpu)
    return tmp_path


@pytest.mark.parametrize(("asked", "name"), [("host_gpu", "host_gpu"), ("GPU", "host_gpu"), ("host_gpu1", "host_gpu1")])
def test_the_spec_of_a_gpu_is_written_and_found(instant_gpu, capsys, asked, name):
    assert main(["hw", "calibrate", asked]) == 0
    out, err = capsys.readouterr()
    assert f"use it as --hw {name}" in out
    assert "4 independent chains in each of 16 warps" in out
    assert "sampling" in err
    assert hardware(name).compute.clock_hz == 1.5e9


def test_a_gpu_as_json_and_printed(instant_gpu, capsys):
    assert main(["hw", "calibrate", "host_gpu", "--print", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["path"] is None
    assert answer["measured"]["rates"]["fma_4_16"]["value"] == 1.4e12
    assert main(["hw", "calibrate", "host_gpu", "--print"]) == 0
    assert "[shared_memory]" in capsys.readouterr().out
    assert not list(instant_gpu.rglob("*.toml"))


def test_no_gpu_is_one_line(monkeypatch, capsys):
    from anatune.errors import DeviceError
    from anatune.measure.cuda.calibration import calibrate as gpu_module

    def nothing(index):
        raise DeviceError("no GPU can be used here: no driver")

    monkeypatch.setattr(gpu_module, "open_device", nothing)
    assert main(["hw", "calibrate", "host_gpu"]) == 1
    assert capsys.readouterr().err.splitlines() == ["error: no GPU can be used here: no driver"]
    assert main(["hw", "calibrate", "toaster"]) == 2
    assert "'toaster' cannot be calibrated" in capsys.readouterr().err
