"""AMD's GPUs of the present machine among packaged specs; NVIDIA's: `tests.unit.measure.cpu.test_detect`."""

import pytest

import anatune
from anatune.errors import DeviceError
from anatune.measure.cuda import detect
from anatune.measure.cuda.detect import amd_detection, present_gpus
from anatune.measure.cuda.drivers.hip_python import HipPython
from tests.unit.measure.false_driver import MI300X, FalseHip
from tests.wording import refuses


def hip(product, arch, units, **more):
    attributes = MI300X | {"hipDeviceAttributeMultiprocessorCount": units}
    return HipPython(FalseHip(name=product, arch=arch, attributes=attributes, **more))


@pytest.mark.parametrize(
    ("product", "arch", "units", "name"),
    [
        ("AMD Instinct MI300X", "gfx942", 304, "mi300x"),
        ("AMD Instinct MI325X", "gfx942", 304, "mi325x"),
        ("AMD Instinct MI210", "gfx90a", 104, "mi210"),
        ("AMD Radeon Graphics", "gfx950", 256, "mi350x"),
    ],
)
def test_packaged_specs_are_found(product, arch, units, name):
    (first, second), how = amd_detection(hip(product, arch, units, devices=2))
    assert (first.name, second.name, how) == (name, name, "2 found through hip-python")


def test_what_has_no_spec_is_told():
    found, why = amd_detection(hip("AMD Instinct MI300A", "gfx942", 228))
    assert found == []
    assert why.startswith("AMD Instinct MI300A (gfx942, 228 compute units) has no packaged spec")


def test_both_vendors(monkeypatch):
    amd, nvidia = anatune.hardware("mi300x"), anatune.hardware("h200")
    own, others = ([nvidia], "1 found through pycuda"), ([amd], "1 found through hip-python")
    for first, second, specs, how in (
        (own, others, [nvidia, amd], "1 found through pycuda; 1 found through hip-python"),
        (([], "no libcuda"), others, [amd], "1 found through hip-python"),
        (own, ([], "no HIP"), [nvidia], "1 found through pycuda"),
        (([], "no libcuda"), ([], "no HIP"), [], "no libcuda; no HIP"),
    ):
        monkeypatch.setattr(detect, "gpu_detection", lambda found=first: found)
        monkeypatch.setattr(detect, "amd_detection", lambda found=second: found)
        assert present_gpus() == (specs, how)
        if specs:
            assert anatune.hardware("host_gpu").arch == specs[0].arch
        else:
            with refuses(DeviceError):
                anatune.hardware("host_gpu")
