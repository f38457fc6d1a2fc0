"""What is built is the same wherever and whenever it is built, holds what it should, and works in a bare environment.

Nothing here needs a network: builds are not isolated, and the bare environment borrows the installed packages.
"""

import json
import os
import re
import shlex
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import anatune as package
from anatune.requirements import pip_line
from tests.processes import run

pytest.importorskip("build", reason="building needs the packages build and hatchling (extra dev)")
pytest.importorskip("hatchling", reason="building needs the packages build and hatchling (extra dev)")

ROOT = Path(package.__file__).parents[1]
NAME = f"anatune-{package.__version__}"

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="an installed package builds none")

REBUILD = """
import os, sys
os.umask(0o077)
os.chdir(sys.argv[1])
from hatchling import build
print(build.build_sdist(sys.argv[2]), build.build_wheel(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("built")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / NAME


@pytest.mark.slow
def test_builds_are_the_same_to_the_byte(built, unpacked, tmp_path):
    """Another folder, other times and permissions of files, another time zone, language and mask."""
    for path in unpacked.rglob("*.py"):
        os.utime(path, (1.1e9, 1.1e9))
        path.chmod(0o600)
    done = run(sys.executable, "-c", REBUILD, unpacked, tmp_path, cwd=tmp_path, TZ="Asia/Tokyo", LC_ALL="C")
    assert done.returncode == 0, done.stderr[-2000:]
    names = sorted(path.name for path in built.iterdir())
    assert names == [f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"] == sorted(path.name for path in tmp_path.iterdir())
    for name in names:
        assert (built / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_a_wheel_holds_the_package_its_data_and_licences_and_no_tests(built):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        stated = wheel.read(f"{NAME}.dist-info/METADATA").decode()
        entries = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    folders = {"anatune": "anatune", "hwspecs": "anatune/_data/hwspecs", "models": "anatune/_data/models"}
    wanted = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".sqlite", ".log")
    }
    information = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE")
    assert names == wanted | {f"{NAME}.dist-info/{name}" for name in information}
    assert "anatune/py.typed" in names
    assert "License-Expression: Apache-2.0" in stated
    assert "anatune = anatune.__main__:run" in entries


def test_a_source_distribution_holds_what_a_checkout_does(unpacked):
    top = {path.name for path in unpacked.iterdir()}
    files = "ARCHITECTURE.md CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE NOTICE PKG-INFO README.md pyproject.toml"
    folders = ".ci .github anatune bench docs examples hwspecs models tests"
    assert {*files.split(), *folders.split()} <= top
    lost = [path for path in (ROOT / "tests").rglob("*.py") if not (unpacked / path.relative_to(ROOT)).is_file()]
    assert not lost


@pytest.fixture(scope="module")
def bare(built, tmp_path_factory):
    """The interpreter of an environment in which nothing but the wheel and what it always needs is installed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        wheel.extractall(site)
    waiting, done = [metadata.PathDistribution(site / f"{NAME}.dist-info")], set()
    markers = pytest.importorskip("packaging.requirements")
    while waiting:
        for text in waiting.pop().requires or ():
            needed = markers.Requirement(text)
            if needed.name in done or (needed.marker and not needed.marker.evaluate({"extra": ""})):
                continue
            done.add(needed.name)
            found = metadata.distribution(needed.name)
            waiting.append(found)
            for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    (site / top).symlink_to(Path(str(found.locate_file(top))))
    return folder / "bin" / "python"


def anatune(python, *words, cwd, faults=None):
    variables = {"XDG_CONFIG_HOME": str(cwd / "config"), "PYTHONNOUSERSITE": "1"}
    return run(python, "-m", "anatune", *words, cwd=cwd, **variables, **({"PYTHONPATH": str(faults)} if faults else {}))


def levels(done):
    return {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}


def wanted(command):
    """Return the packages that a command of pip's installs: metadata order their versions anew."""
    from packaging.requirements import Requirement

    pip, install, *texts = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    return sorted(map(Requirement, texts), key=str)


@pytest.mark.skipif(sys.platform == "win32", reason="its environments look different")
def test_doctor_on_a_bare_installation(bare, tmp_path):
    done = anatune(bare, "doctor", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = levels(done)
    assert json.loads(done.stdout)["can_plan"] is True
    assert (told["planning"]["level"], told["anatune"]["level"]) == ("ok", "ok")
    for name in ("tvm", "cuda", "learn", "onnx", "cluster", "boards", "postgres", "optuna", "metaschedule"):
        assert told[name]["level"] == "missing", told[name]
        assert wanted(told[name]["fix"]) == wanted(pip_line(name))  # the wheel's metadata say what the checkout says
        assert told[name]["serves"]
    version = anatune(bare, "--version", cwd=tmp_path).stdout.splitlines()
    assert version[0] == f"anatune {package.__version__}"
    assert version[-1].startswith("not installed: apache-tvm, apache-tvm-ffi")


def put(site, name, version, text):
    """Install a package that does what `text` says when it is imported."""
    (site / name.replace("apache_", "")).mkdir()
    (site / name.replace("apache_", "") / "__init__.py").write_text(text)
    information = site / f"{name}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="its environments look different")
def test_doctor_on_broken_extras(bare, tmp_path):
    put(tmp_path, "apache_tvm", "0.27.0.post1", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    put(tmp_path, "apache_tvm_ffi", "0.1.15.post2", "")
    put(tmp_path, "onnx", "1.17", "raise RuntimeError('protobuf is of another version')")
    done = anatune(bare, "doctor", "--json", cwd=tmp_path, faults=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = levels(done)
    assert "onnx cannot be imported (RuntimeError: protobuf is of another version)" in told["onnx"]["text"]
    assert told["tvm"]["level"] == "broken"
    assert "0.1.15.post2 crashes in tvm.ir.save_json" in told["tvm"]["text"]


@pytest.mark.skipif(sys.platform == "win32", reason="its environments look different")
def test_doctor_where_anatune_cannot_start(bare, tmp_path):
    put(tmp_path, "typer", "0.19", "raise ImportError('no click')")
    done = anatune(bare, "plan", "--hw", "rtx3090", "matmul", "8x8x8", cwd=tmp_path, faults=tmp_path)
    line = "error: anatune cannot start (ImportError: no click); run `anatune doctor`\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
    done = anatune(bare, "doctor", cwd=tmp_path, faults=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert (
        "error    typer: typer cannot be imported (no click) [everything]; pip install --force-reinstall typer\n"
        in done.stdout
    )
    assert done.stdout.splitlines()[-1] == "anatune cannot plan here: see the lines that begin with error"
    assert anatune(bare, "doctor", "--slow", cwd=tmp_path, faults=tmp_path).returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="its environments look different")
def test_a_damaged_package_is_one_line_and_the_doctor_knows_it(bare, tmp_path):
    put(tmp_path, "msgspec", "0.19", "raise ImportError('no _core')")
    done = anatune(bare, "plan", "--hw", "rtx3090", "matmul", "8x8x8", cwd=tmp_path, faults=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: a.* \(.*no _core\); run `anatune doctor`\n", done.stderr)
    done = anatune(bare, "doctor", "--quick", "--json", cwd=tmp_path, faults=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    told = levels(done)
    assert told["planning"]["text"].endswith(": no _core")
    assert told["msgspec"]["level"] == "error"
