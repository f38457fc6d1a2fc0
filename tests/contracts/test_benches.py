"""Every bench has a command line that answers --help, and a page with its command that the index links to."""

import importlib
import re
from pathlib import Path

import pytest

import bench

ROOT = Path(bench.__file__).parent
SOURCES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path.read_text()
    for path in sorted(ROOT.rglob("*.py"))
}
BENCHES = [name for name, source in SOURCES.items() if re.search(r"^if __name__ == ", source, re.MULTILINE)]
PROGRAMS = [name for name in BENCHES if "argparse" in SOURCES[name]]
INDEX, DOCUMENTS = ROOT / "README.md", ROOT.parent / "docs"
HAS_PAGES = pytest.mark.skipif(not DOCUMENTS.is_dir(), reason="an installed package has no documents beside it")
_ROW = re.compile(r"^\| \[([\w.]+)\]\(([^)]+)\) \|", re.MULTILINE)


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


@HAS_PAGES
def test_every_bench_has_a_page_with_its_command():
    text = INDEX.read_text()
    pages = {f"bench.{name}": (ROOT / link).read_text() for name, link in _ROW.findall(text)}
    names = {name.removesuffix(".__main__") for name in BENCHES}
    assert {name for name in names if f"python -m {name}" not in pages.get(name, text)} == set()
    assert set(pages) <= names


@HAS_PAGES
def test_every_page_is_in_the_index():
    pages = {path.name for path in (DOCUMENTS / "bench").glob("*.md")} - {"index.md"}
    assert pages == {Path(link).name for _, link in _ROW.findall(INDEX.read_text()) if "/bench/" in link}
