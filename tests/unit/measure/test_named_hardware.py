"""Names of the present machine's devices."""

import pytest

import anatune
from anatune.errors import DeviceError, UnknownNameError
from anatune.measure.cuda import detect
from anatune.measure.named_hardware import hardware
from tests.wording import refuses


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Return the list of GPUs that are found."""
    found = []
    why = "the library libcuda cannot be loaded"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(detect, "gpu_detection", lambda: (found, "" if found else why))
    return found


def test_a_gpu_that_is_not_there_is_no_unknown_word(gpus):
    for name in ("host_gpu", "HOST_GPU1"):
        with refuses(DeviceError):
            hardware(name)
    with pytest.raises(UnknownNameError):
        hardware("host_gpus")


def test_a_gpu_that_is_there_needs_no_file(gpus):
    gpus += [anatune.hardware("h200"), anatune.hardware("a100_sxm")]
    assert (hardware("host_gpu").name, hardware("host_gpu").arch) == ("host_gpu", "sm_90")
    assert (hardware("host_gpu1").name, hardware("host_gpu1").arch) == ("host_gpu1", "sm_80")
    with refuses(DeviceError):
        hardware("host_gpu2")
