"""Models for AMD's matrix units on a HIP that is not there: what the launches pass is what their machine code takes."""

import struct

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels are compiled by Triton")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch

from anatune.errors import DeviceError, RunError
from anatune.network.compiling.targets import launched
from anatune.network.compiling.targets.device_runner import DeviceRunner
from tests.tiers import slow_from
from tests.unit.measure.cuda.test_dlpack import OnDevice
from tests.unit.measure.false_driver import false_device
from tests.unit.network.compiling.targets.gpu_models import block, compiled, interpreted_device
from tests.wording import refuses

nn = torch.nn
SMALL = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, 16)).eval()
X = torch.randn(20, 32)


@pytest.fixture(scope="module")
def small():
    return compiled(SMALL, (X,), "mi300x")


def test_it_runs_as_in_the_interpreter(small, monkeypatch):
    small.interprets = True
    want = small(X.numpy())
    monkeypatch.setattr(small, "interprets", False)
    device, driver = interpreted_device(small.program, "gfx942")
    asked = []
    monkeypatch.setattr(launched, "open_device", lambda arch: asked.append(arch) or device)
    for _ in range(3):
        np.testing.assert_array_equal(small(X.numpy()), want)
    assert asked == ["gfx942"]
    assert (driver.calls["cuGraphInstantiate"], driver.calls["cuGraphLaunch"]) == (1, 2)
    assert set(small.profile(repeats=1)) == {launch.name for launch in small.program.launches}
    given, made = device.allocate(20 * 32 * 4), device.allocate(20 * 16 * 4)
    device.upload(given, X.numpy())
    tensors = (given.address, (20, 32)), (made.address, (20, 16))
    small.launch(*(OnDevice(*one, (2, 32), place=(10, 0)) for one in tensors))
    found = np.empty((20, 16), np.float32)
    device.download(made, found)
    np.testing.assert_array_equal(found, want)
    with refuses(RunError):
        small.launch(*(OnDevice(*one, (2, 32)) for one in tensors))


def test_it_is_checked_where_the_gpu_is(monkeypatch):
    drivers = []

    def runner(program, memory, inputs, outputs, device):
        device, driver = interpreted_device(program, device.arch)
        drivers.append(driver)
        return DeviceRunner(program, memory, inputs, outputs, device)

    monkeypatch.setattr(launched, "open_device", lambda arch: false_device({}, arch)[0])
    monkeypatch.setattr(launched, "DeviceRunner", runner)
    own = compiled(SMALL, (X,), "mi300x", check=True)
    assert own.summary.check.error < 2e-2
    runs, rest = divmod(len(drivers[0].launched), own.summary.launches)
    assert (runs >= 1, rest) == (True, 0)  # some with inputs that are zeros and the like


@pytest.mark.parametrize(
    ("arch", "there", "is_here"),
    [("gfx90a", "gfx90a", True), ("gfx942", "gfx950", False), ("sm_90a", "sm_90", True), ("sm_90", "sm_80", False)],
)
def test_which_code_runs_here(monkeypatch, arch, there, is_here):
    monkeypatch.setattr(launched, "open_device", lambda arch: false_device({}, there)[0])
    assert launched.has_gpu(arch) is is_here


def test_another_gpu_is_told(small, monkeypatch):
    other = launched.LaunchedModel.from_program(small.summary, small.program, small.memory)
    monkeypatch.setattr(launched, "open_device", lambda arch: false_device({}, "gfx90a")[0])
    with refuses(RunError):
        other(X.numpy())

    def gone(arch):
        raise DeviceError("none")

    monkeypatch.setattr(launched, "open_device", gone)
    assert not launched.has_gpu("gfx942")


@pytest.mark.slow
@pytest.mark.parametrize("hw", slow_from(1, ["mi300x", "mi210", "mi355x"]))
def test_machine_code_takes_what_launches_pass(hw):
    """Threads of a block, and pointers of tensors and of two kinds of scratch, as the code's own metadata has them."""
    model, inputs = block()
    own = compiled(model, inputs, hw).program
    for launch in own.launches:
        kernel = own.kernels[launch.kernel]
        (told,) = metadata(own.image[kernel.first : kernel.first + kernel.num_bytes])["amdhsa.kernels"]
        assert told[".name"] == kernel.function
        assert (told[".wavefront_size"], told[".max_flat_workgroup_size"]) == (64, kernel.block)
        assert [one[".value_kind"] for one in told[".args"]] == ["global_buffer"] * (len(launch.regions) + 2)
        assert told[".group_segment_fixed_size"] == 0  # all of it is asked for by the launch
    assert any(kernel.dynamic_shared_bytes for kernel in own.kernels)


def metadata(image):
    """Return the note of an hsaco. Source: LLVM's AMDGPU usage, Code Object V3 and later."""
    at = image.index(b"AMDGPU\0\0")
    (size,) = struct.unpack_from("<I", image, at - 8)
    return msgspec.msgpack.decode(image[at + 8 : at + 8 + size])
