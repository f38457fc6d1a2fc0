from pathlib import Path

import msgspec
import pytest

import anatune
from anatune.doctor import packages
from anatune.doctor.packages import EXTRAS, module_of, problem, version_lines
from anatune.requirements import needs

PYPROJECT = Path(anatune.__file__).parents[1] / "pyproject.toml"


@pytest.fixture
def versions(monkeypatch):
    """Installed versions, as the test says."""
    known = {}
    monkeypatch.setattr(packages, "version_of", known.get)
    return known


def test_every_extra_says_what_it_is_for():
    extras = msgspec.toml.decode(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(extras) - {"dev", "docs"} == set(EXTRAS), "say in anatune/doctor/packages.py what a new extra is for"


def test_developers_need_no_cuda_toolkit():
    """pycuda is built from source: continuous integration installs `.[dev]` on machines without CUDA."""
    asked = needs()
    assert [need.name for need in asked["pycuda"]] == ["pycuda"]
    assert "pycuda" not in {need.name for extra, wanted in asked.items() if extra != "pycuda" for need in wanted}


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (None, "apache-tvm-ffi is not installed"),
        ("0.1.14.post1", ""),
        (
            "0.1.15.post2",
            "apache-tvm-ffi 0.1.15.post2 is installed, but ==0.1.14.post1 is required "
            "(0.1.15.post2 crashes in tvm.ir.save_json)",
        ),
    ],
)
def test_a_pinned_version_is_judged_and_told_why(versions, installed, said):
    versions["apache-tvm-ffi"] = installed
    pinned = next(need for need in needs()["tvm"] if need.name == "apache-tvm-ffi")
    assert problem(pinned) == said


def test_the_first_line_of_the_version_stays(versions):
    versions |= {"numpy": "2.0", "torch": "3.0+cpu"}
    first, second, *others, last = version_lines()
    assert first == f"anatune {anatune.__version__}"
    assert second.startswith("Python 3.")
    assert others == ["numpy 2.0", "torch 3.0+cpu"]
    assert last.startswith("not installed: numba, ")


def test_modules_of_distributions():
    assert module_of("scikit-learn") == "sklearn"
    assert module_of("no-such-package") == ""
    assert module_of("nvidia-cuda-nvrtc-cu12") == ""
