"""``anatune hw calibrate`` with a calibration that takes no time."""

import json

import pytest

from anatune.cli.main import main
from anatune.core.hardware_files import hardware
from anatune.measure import calibrate as module
from anatune.measure.calibrate_tiles import Tile
from tests.unit.measure.test_calibrate import detected, numbers


@pytest.fixture
def instant(monkeypatch, tmp_path):
    """Replace the measuring; specs are written to an empty folder, which is returned."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def calibrate(*, minutes, progress):
        progress("one core", 0.5)
        return module.finished(detected(), numbers(), {Tile(14, 2, 1): 0.98}, {}, minutes, "today")

    monkeypatch.setattr(module, "calibrate", calibrate)
    return tmp_path


def test_the_host_spec_is_written_and_found(instant, capsys):
    assert main(["hw", "calibrate", "--minutes", "0.5"]) == 0
    out, err = capsys.readouterr()
    assert "use it as --hw host" in out
    assert "precision" in out
    assert "one core" in err
    assert hardware("host").microkernels.tiles == ((14, 2, 1, 0.98),)


def test_print_writes_nothing(instant, capsys):
    assert main(["hw", "calibrate", "--print"]) == 0
    out, _ = capsys.readouterr()
    assert "[microkernels]" in out
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
