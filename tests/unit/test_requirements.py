import shlex
import sys
from importlib import metadata

import pytest

from anatune import requirements
from anatune.doctor.packages import EXTRAS
from anatune.requirements import Need, needs, pip_line


def test_what_is_asked_for_is_what_the_project_states():
    asked = needs()
    assert Need("numba", ">=0.68") in asked[""]
    assert Need("sqlalchemy", ">=2.0") in asked[""]
    assert {need.name for need in asked["metaschedule"]} == {"apache-tvm", "apache-tvm-ffi", "cloudpickle", "psutil"}
    assert all(need.specifier for need in asked["tvm"])


def test_an_installed_package_has_metadata_instead_of_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(requirements, "__file__", str(tmp_path / "site" / "anatune" / "requirements.py"))
    stated = ["numpy>=1.26", 'tomli >=2.0 ; python_version < "3"', 'onnx>=1.16; extra == "onnx"', "Scikit_Learn"]
    monkeypatch.setattr(metadata, "requires", lambda name: stated)
    without = {"": [Need("numpy", ">=1.26"), Need("scikit-learn", "")], "onnx": [Need("onnx", ">=1.16")]}
    assert needs() == without
    assert pip_line("onnx") == "pip install 'onnx>=1.16'"
    monkeypatch.setitem(sys.modules, "packaging.markers", None)  # its import fails
    assert needs() == without

    def none(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", none)
    assert needs() == {}
    assert pip_line("onnx") == "pip install '.[onnx]' in a clone of anatune"


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_line_of_an_extra_is_one_that_pip_takes(extra):
    """There is no package of anatune's in an index: the line names what the extra asks for."""
    markers = pytest.importorskip("packaging.requirements")
    pip, install, *wanted = shlex.split(pip_line(extra))
    assert (pip, install) == ("pip", "install")
    read = [markers.Requirement(text) for text in wanted]
    assert {one.name for one in read} == {need.name for need in needs()[extra]}
    assert "anatune" not in {one.name for one in read}
    assert any(one.extras == {"binary"} for one in read) == (extra == "postgres")
