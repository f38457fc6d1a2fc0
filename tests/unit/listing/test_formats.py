"""Optional packages, formats of ``anatune prune`` and the present device: no adapter's package is needed here."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import anatune
from anatune.adapters import device
from anatune.adapters.optuna import schedule_space
from anatune.adapters.triton import configs_for
from anatune.codegen.compat import import_meta_schedule
from anatune.errors import DeviceError, MissingDependencyError, SpaceError, UnknownNameError
from anatune.listing.writers import find_writer, list_formats
from tests.wording import refuses


def test_adapters_import_their_packages_when_they_are_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with refuses(MissingDependencyError):
        configs_for(64, 64, 64, hw="a100")
    made = configs_for(64, 64, 64, hw="a100", keep=2, make=lambda meta, **launch: (meta, launch))
    assert [set(launch) for _, launch in made] == [{"num_warps", "num_stages"}] * 2
    space = schedule_space(anatune.matmul(16, 16, 16), "rtx3090", keep=2)
    with refuses(MissingDependencyError):
        _ = space.distributions


def test_importing_adapters_imports_no_tuner():
    names = "anatune.adapters.triton, anatune.adapters.optuna, anatune.listing.formats"
    code = f"import sys, {names}; print([m for m in ('triton', 'optuna', 'torch', 'tvm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_format_has_a_writer():
    for name in list_formats():
        assert callable(find_writer(name))
    with refuses(UnknownNameError):
        find_writer("yaml")


@pytest.mark.parametrize(
    "arguments",
    [{"m": 0}, {"dtype": "int4"}, {"keep": -1}, {"names": {"block_m": "M"}}, {"hw": "intel_xeon_gold_6130"}, {"hw": 3}],
)
def test_bad_input_of_configs_for(arguments):
    given = {"m": 64, "n": 64, "k": 64, "hw": "a100"} | arguments
    with refuses(SpaceError):
        configs_for(given.pop("m"), given.pop("n"), given.pop("k"), make=dict, **given)


class Driver:
    """What the adapter asks of Triton's driver."""

    def __init__(self, arch, num_sms):
        self.arch = arch
        self.utils = SimpleNamespace(get_device_properties=lambda index: {"multiprocessor_count": num_sms})

    def get_current_device(self):
        return 0

    def get_current_target(self):
        return SimpleNamespace(backend="cuda", arch=self.arch)


def test_the_present_device_without_the_cuda_packages(monkeypatch):
    monkeypatch.delenv(device.VARIABLE, raising=False)
    monkeypatch.setattr("anatune.measure.cuda.detect.gpu_detection", lambda: ([], "no package"))
    monkeypatch.setattr(device, "_triton_driver", lambda: Driver(86, 82))
    assert device.find_gpu("auto").name == "rtx3090"
    monkeypatch.setattr(device, "_triton_driver", lambda: Driver(86, 13))
    with refuses(DeviceError):
        device.find_gpu("auto")


def test_the_present_device_is_the_one_that_triton_uses(monkeypatch):
    monkeypatch.delenv(device.VARIABLE, raising=False)
    specs = [anatune.hardware("rtx3090"), anatune.hardware("a100")]
    monkeypatch.setattr("anatune.measure.cuda.detect.gpu_detection", lambda: (specs, "found"))
    driver = Driver(80, 108)
    monkeypatch.setattr(driver, "get_current_device", lambda: 1)
    monkeypatch.setattr(device, "_triton_driver", lambda: driver)
    assert device.find_gpu("auto") is specs[1]


def test_the_environment_names_the_device(monkeypatch, tmp_path):
    monkeypatch.setenv(device.VARIABLE, "h100_sxm")
    assert device.find_gpu("auto").name == "h100_sxm"
    monkeypatch.setenv(device.VARIABLE, str(tmp_path / "mine.toml"))
    with refuses(anatune.AnatuneError):
        device.find_gpu("auto")


@pytest.mark.parametrize("package", ["psutil", "cloudpickle"])
def test_metaschedule_says_what_it_needs_beside_tvm(monkeypatch, package):
    pytest.importorskip("tvm", reason="pip install '.[tvm]'")
    monkeypatch.setitem(sys.modules, package, None)
    with refuses(MissingDependencyError):
        import_meta_schedule()
