"""The core works where an optional package is deleted, together with the entry points that name it."""

import ast
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

import anatune as package
from anatune.named import entries, load
from tests.processes import run

ROOT = Path(package.__file__).parents[1]
OPTIONAL = ("adapters", "export", "fleet", "network", "pages", "plots", "servers")
CORE_TESTS = (
    *("tests/e2e/test_plan.py", "tests/e2e/test_prune.py", "tests/e2e/test_tune.py"),
    *("tests/unit/model/pruning/test_subset.py", "tests/unit/tuning/test_session.py"),
    *("-k", "not (triton or kernel or metaschedule or interrupted)"),  # formats of other tuners, a page
)
GROUPS = ("boards", "calls", "commands", "figures", "formats", "logs", "pages", "places")

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="an installed package has no tree")

WORK = """
import sys
import anatune
assert anatune.__file__.startswith(sys.argv[1]), anatune.__file__
workload = anatune.matmul(64, 64, 64)
for hw in ("rtx3090", "amd_epyc_9575f"):
    plan = anatune.plan(workload, hw)
    assert plan.predictions[0].time_s > 0 and plan.explain()
    assert len(list(anatune.prune(workload, hw, 8))) == 8
"""
TUNING = """
assert anatune.verify(anatune.plan(workload, "host", threads=1).best).ok
result = anatune.tune(workload, "host", trials=2, threads=1, records=sys.argv[2])
assert result.best_trial is not None
"""


def copied(folder, gone):
    """Copy what is built and tested to a folder, without packages and the entry points that name them."""
    kept = ("anatune", "bench", "hwspecs", "models", "tests", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
    for name in kept:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    for name in gone:
        shutil.rmtree(folder / "anatune" / name)
    text = (folder / "pyproject.toml").read_text()
    text = re.sub(rf"(?m)^[\w-]+ = \"anatune\.({'|'.join(gone)})[.:].*\n", "", text)
    (folder / "pyproject.toml").write_text(text)
    return folder


def installed(tree, site):
    """Build a wheel of a tree and unpack it, which is what installing it does."""
    code = "import os, sys; os.chdir(sys.argv[1]); from hatchling import build; print(build.build_wheel(sys.argv[2]))"
    done = run(sys.executable, "-c", code, tree, site, cwd=tree)
    assert done.returncode == 0, done.stderr[-2000:]
    with zipfile.ZipFile(site / done.stdout.split()[-1]) as wheel:
        wheel.extractall(site)
    return site


def imports(folder):
    """Return the top-level packages of anatune that modules below a folder import, in functions and strings, too."""
    seen = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                seen |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                seen |= {alias.name for alias in node.names}
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.fullmatch(r"anatune[\w.:]+", node.value)
            ):
                seen.add(node.value)
    return {name.split(".")[1].partition(":")[0] for name in seen if name.startswith("anatune.")}


def test_the_core_names_no_optional_package():
    folders = [path for path in (ROOT / "anatune").iterdir() if path.is_dir()]
    core = [path for path in folders if path.name not in (*OPTIONAL, "__pycache__")]
    assert len(core) > 9
    for folder in core:
        assert not imports(folder).intersection(OPTIONAL), folder.name


def test_every_entry_point_is_of_an_optional_package():
    named = {place.split(".")[1] for group in GROUPS for place in entries(group).values()}
    assert named <= set(OPTIONAL)
    for group in GROUPS:
        assert all(callable(load(group, name)) for name in entries(group)), group
    text = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r'entry-points\."anatune\.(\w+)"', text)) == set(GROUPS)


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Return a tree without any optional package, and the folder where it is installed."""
    pytest.importorskip("tvm", reason="tuning needs TVM")
    pytest.importorskip("hatchling", reason="building needs hatchling (extra dev)")
    tree = copied(tmp_path_factory.mktemp("tree"), OPTIONAL)
    return tree, installed(tree, tmp_path_factory.mktemp("site"))


def test_the_core_alone_plans_prunes_and_tunes(core, tmp_path):
    _, site = core
    done = run(
        sys.executable, "-c", WORK + TUNING, site, tmp_path / "records.sqlite", cwd=tmp_path, PYTHONPATH=str(site)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for words, told in (
        (("compile", "model.onnx"), "No such command"),
        (
            ("plan", "--hw", "rtx3090", "matmul", "64x64x64", "--html", "page.html"),
            "--html belongs to an optional package",
        ),
        (("tune", "--hw", "host", "matmul", "8x8x8", "--tracker", "a:1", "--key", "b"), "--tracker belongs to"),
        (("prune", "--hw", "rtx3090", "matmul", "64x64x64", "--for", "triton"), "expected one of json, csv"),
    ):
        done = run(sys.executable, "-m", "anatune", *words, cwd=tmp_path, PYTHONPATH=str(site))
        assert done.returncode in (1, 2), words
        assert told in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_core_alone_passes_its_tests(core):
    tree, _ = core
    words = ("-q", "-p", "no:cacheprovider", "-n", "0", *CORE_TESTS)
    done = run(sys.executable, "-m", "pytest", *words, cwd=tree, PYTHONPATH=str(tree))
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONAL)
def test_the_core_works_without(name, tmp_path):
    pytest.importorskip("hatchling", reason="building needs hatchling (extra dev)")
    (tmp_path / "tree").mkdir()
    (tmp_path / "site").mkdir()
    site = installed(copied(tmp_path / "tree", (name,)), tmp_path / "site")
    done = run(sys.executable, "-c", WORK, site, cwd=tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr[-2000:]
    done = run(sys.executable, "-m", "anatune", "--help", cwd=tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr[-2000:]
