import pytest

from anatune.doctor import folders
from anatune.doctor.folders import folder_findings


@pytest.fixture
def found(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return lambda: {finding.subject: finding for finding in folder_findings()}


def test_folders_that_are_not_there_yet(found, tmp_path):
    told = found()
    assert told["compiled code"].level == "ok"
    assert told["compiled code"].text.startswith(f"none yet in {tmp_path / 'cache' / 'anatune'}")
    assert told["your specs"].level == "note"
    assert told["your specs"].fix == "anatune hw detect, then anatune hw calibrate"
    assert list(tmp_path.iterdir()) == []  # a look leaves nothing behind


def test_folders_in_use(found, tmp_path):
    (tmp_path / "cache/anatune/numerics-0123").mkdir(parents=True)
    (tmp_path / "cache/anatune/numerics-0123/cuda.x.code").touch()
    (tmp_path / "config/anatune/hwspecs").mkdir(parents=True)
    (tmp_path / "config/anatune/hwspecs/board.toml").touch()
    told = found()
    assert told["compiled code"].text == f"cached in {tmp_path / 'cache' / 'anatune'}"
    assert told["your specs"].text == f"board in {tmp_path / 'config/anatune/hwspecs'}, but none of this machine"
    (tmp_path / "config/anatune/hwspecs/host.toml").touch()
    assert found()["your specs"].level == "ok"


def test_folders_that_cannot_be_written(found, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    told = found()
    assert told["compiled code"].level == told["your specs"].level == "warning"
    assert "cannot be written (not a directory)" in told["compiled code"].text
    assert told["compiled code"].fix.startswith("set NUMBA_CACHE_DIR")


def test_without_a_home_or_data(found, monkeypatch):
    def missing(name):
        raise FileNotFoundError(f"anatune's data folder {name!r} is missing; reinstall the package")

    monkeypatch.setattr(folders, "data_folder", missing)
    monkeypatch.setattr(folders, "user_cache_folder", lambda: None)
    monkeypatch.setattr(folders, "user_config_folder", lambda: None)
    told = list(folder_findings())
    assert [finding.level for finding in told] == ["error", "broken", "warning", "warning"]
