"""``anatune hw detect|calibrate --tracker`` with a board that takes no time."""

import json

import msgspec
import pytest

from anatune.cli.main import main
from anatune.core.hardware.files import hardware
from anatune.fleet.boards import calibration
from anatune.fleet.boards import description as asking
from anatune.fleet.boards.calibration import CalibratedBoard
from anatune.fleet.boards.description import BoardDescription
from anatune.measure.cpu.calibration import calibrate as module
from anatune.measure.cpu.calibration.tiles import RegisterTile
from anatune.records.environment import environment
from tests.unit.measure.cpu.calibration.test_calibrate import detected, numbers

WORDS = ["--tracker", "127.0.0.1:9190", "--key", "rpi4"]


@pytest.fixture
def board(monkeypatch, tmp_path):
    """Replace the asking; specs are written to an empty folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    spec = msgspec.structs.replace(detected(), name="rpi4")
    told = BoardDescription("rpi4@10.0.0.7:9090", "rpi4", spec, environment(), None, 2)

    def ask_board(tracker, key):
        assert (tracker, key) == ("127.0.0.1:9190", "rpi4")
        return told

    def calibrate_board(tracker, key, minutes):
        found = module.finish_spec(spec, numbers(), {RegisterTile(14, 2, 1): 0.98}, {}, minutes, "today")
        return CalibratedBoard(told, found)

    monkeypatch.setattr(asking, "ask_board", ask_board)
    monkeypatch.setattr(calibration, "calibrate_board", calibrate_board)
    return told


def test_a_spec_called_after_the_key_is_written_and_found(board, capsys):
    assert main(["hw", "detect", *WORDS]) == 0
    out, err = capsys.readouterr()
    assert "use it as --hw rpi4" in out
    assert "board rpi4@10.0.0.7:9090, 2 with key rpi4" in out
    assert err == ""
    assert hardware("rpi4") == board.hardware


def test_print_and_json_write_nothing(board, capsys, tmp_path):
    assert main(["hw", "detect", "--print", *WORDS]) == 0
    assert 'name = "rpi4"' in capsys.readouterr().out
    assert main(["hw", "detect", "--print", "--json", *WORDS]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["path"], answer["board"], answer["cpu"]["name"]) == (None, board.name, "rpi4")
    assert not list(tmp_path.rglob("*.toml"))


def test_calibrated_numbers_are_written_and_kept(board, capsys):
    assert main(["hw", "calibrate", "--minutes", "0.5", "--no-nests", *WORDS]) == 0
    out, err = capsys.readouterr()
    assert "use it as --hw rpi4" in out
    assert "best register tile: 14 rows x 2 vectors" in out
    assert "a board with key rpi4" in err
    assert hardware("rpi4").compute.clock_hz == 3.5e9
    assert main(["hw", "detect", *WORDS]) == 0
    assert "rpi4.toml holds calibrated numbers and was not replaced; --force replaces it" in capsys.readouterr().err
    assert main(["hw", "detect", "--force", *WORDS]) == 0
    assert hardware("rpi4") == board.hardware


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["detect", "--key", "rpi4"], "--key is given without --tracker"),
        (["calibrate", "--tracker", "127.0.0.1:1"], "--tracker is given without --key"),
        (["calibrate", "host_gpu", *WORDS], "only the CPU of a board"),
    ],
)
def test_half_of_an_address_and_gpus(words, said, capsys):
    assert main(["hw", *words]) == 2
    assert said in capsys.readouterr().err


def test_who_leaves_the_loopback_is_told(board, monkeypatch, capsys):
    monkeypatch.setattr(asking, "ask_board", lambda tracker, key: board)
    assert main(["hw", "detect", "--print", "--tracker", "lab:9190", "--key", "rpi4"]) == 0
    assert "no passwords and no encryption" in capsys.readouterr().err
