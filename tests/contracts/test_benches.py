"""Every bench with a command line says what it takes."""

import importlib
import re
from pathlib import Path

import pytest

import bench

ROOT = Path(bench.__file__).parent
PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for path in ROOT.rglob("*.py")
    if re.search(r"^if __name__ == ", path.read_text(), re.MULTILINE) and "argparse" in path.read_text()
)


def test_there_are_benches():
    assert len(PROGRAMS) > 50


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_is_answered(monkeypatch, capsys, name):
    monkeypatch.setattr("sys.argv", [name, "--help"])
    try:
        module = importlib.import_module(name)
        with pytest.raises(SystemExit) as end:
            module.main()
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("anatune", "bench"):
            raise
        pytest.skip(f"needs {error.name}")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
