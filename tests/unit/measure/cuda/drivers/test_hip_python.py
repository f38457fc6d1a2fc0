"""AMD's GPUs through hip-python, against a HIP that is not there."""

import numpy as np
import pytest

from anatune.errors import DeviceError, RunError
from anatune.measure.cuda.driver import open_device
from anatune.measure.cuda.drivers import driver_calls
from anatune.measure.cuda.drivers.hip_python import HipPython
from tests.unit.measure.false_driver import HIP, MI300X, FalseHip, Kernel, false_device, floats
from tests.wording import refuses

IMAGE = b"\x7fELF"
KERNELS = {IMAGE: Kernel("copy", 1 << 24, 256, *floats((4, 4), lambda x, y: y.__setitem__(slice(None), x)))}


@pytest.mark.parametrize("returns", [False, True])  # of 6 and 7, of 10
def test_what_a_device_says(returns):
    device = open_device(backend=HipPython(FalseHip(returns=returns)))
    assert (device.name, device.arch, device.backend) == ("AMD Instinct MI300X", "gfx942", "hip-python")
    assert device.attributes["MULTIPROCESSOR_COUNT"] == 304
    assert device.attributes["MAX_THREADS_PER_MULTIPROCESSOR"] == 2048
    assert device.shared_bytes_limit == 65536
    device.close()
    device.close()
    with refuses(DeviceError):
        open_device(1, HipPython(FalseHip()))


def test_copies_fills_events_and_faults():
    device, _ = false_device(KERNELS, "gfx942")
    buffer, found = device.allocate(16), np.zeros(4, np.float32)
    device.fill(buffer, 0)
    device.upload(buffer, np.array([7], np.float32), offset=8)
    device.download(buffer, found)
    assert found.tolist() == [0, 0, 7, 0]
    assert device.time_calls(lambda: device.fill(buffer, 1), samples=2) == pytest.approx([16 / 3e12] * 2)
    device.synchronize()
    buffer.free()
    with refuses(RunError):
        device.allocate(1 << 40)
    with refuses(RunError):
        device.load(b"a cubin", "copy")


def test_images_stay_as_long_as_modules():
    device, _ = false_device(KERNELS, "gfx942")
    image = bytes(bytearray(IMAGE))
    function = device.load(image, "copy")
    assert any(one is image for one in function.module)
    assert function.max_threads == 256
    device.unload(function)


def test_launches_that_hip_does_not_make():
    device, _ = false_device(KERNELS, "gfx942")
    function = device.load(IMAGE, "copy")
    memory = [device.allocate(16), device.allocate(16), np.uint64(0), np.uint64(0)]
    with refuses(RunError):
        device.prepare(function, 1 << 24, 256, memory)
    device.prepare(function, (1 << 24) - 1, 256, memory)
    with refuses(RunError):
        device.prepare(function, 1, 512, memory)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hipErrorOutOfMemory", "OUT_OF_MEMORY"),
        ("hipErrorIllegalAddress", "ILLEGAL_ADDRESS"),
        ("hipErrorLaunchFailure", "LAUNCH_FAILED"),
        ("hipErrorECCNotCorrectable", "ECC_UNCORRECTABLE"),
        ("hipErrorNoDevice", "NO_DEVICE"),
    ],
)
def test_results_are_told_by_nvidias_names(name, said):
    assert HipPython._result(name) == said


def test_no_device_no_package_no_driver(monkeypatch):
    with refuses(DeviceError):
        HipPython(FalseHip(devices=0))

    class Hip(FalseHip):
        def hipInit(self, flags):
            raise RuntimeError("failed to dlopen 'libamdhip64.so'")

    with refuses(DeviceError):
        HipPython(Hip())

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with refuses(DeviceError):
        open_device(arch="gfx942")
    with refuses(DeviceError):
        open_device(backend="pycuda", arch="gfx942")


def test_the_installed_package_has_every_name():
    hip = pytest.importorskip("hip", reason="pip install hip-python").hip
    others = ("SetDevice", "DeviceGetAttribute", "GetDeviceProperties", "FuncGetAttribute", "GetErrorString")
    assert [name for name in (*HIP, *(f"hip{one}" for one in others)) if not hasattr(hip, name)] == []
    assert [name for name in MI300X if not hasattr(hip.hipDeviceAttribute_t, name)] == []
    for name in FalseHip().hipFunction_attribute.__dict__:
        assert hasattr(hip.hipFunction_attribute, name)
    assert hip.hipStreamCaptureMode.hipStreamCaptureModeRelaxed == 2
    results = {HipPython._result(one.name) for one in hip.hipError_t}
    dead = {"ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ASSERT", "NO_DEVICE", "INVALID_DEVICE", "UNKNOWN"}
    assert dead | {"ECC_UNCORRECTABLE", "DEINITIALIZED", "CONTEXT_IS_DESTROYED", "OPERATING_SYSTEM"} <= results
    assert dead <= {*driver_calls._FAULTS, *driver_calls._LOSSES}
