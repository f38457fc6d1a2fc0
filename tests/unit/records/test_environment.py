"""The environment of a record."""

import subprocess
import sys

import msgspec

import anatune
from anatune.records import environment as module
from anatune.records.environment import Environment, environment


def test_says_what_it_should():
    found = environment()
    assert found.anatune == anatune.__version__
    assert found.python == sys.version.split()[0].rstrip("+")
    assert found.cores >= 1
    assert found.cpu
    assert msgspec.json.decode(msgspec.json.encode(found), type=Environment) == found


def test_threads_are_noted(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HOME_ADDRESS", "secret")
    environment.cache_clear()
    assert environment().variables["OMP_NUM_THREADS"] == "3"
    assert "secret" not in str(environment())
    environment.cache_clear()


def test_processors_without_a_name(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "none")
    assert module._cpu_model()
    (tmp_path / "arm").write_text("processor\t: 0\nHardware\t: BCM2711\n")
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "arm")
    assert module._cpu_model() == "BCM2711"


def test_no_package_is_imported_for_it():
    code = (
        "import sys; from anatune.records.environment import environment; environment();"
        "print([name for name in ('tvm', 'numba', 'pandas', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
