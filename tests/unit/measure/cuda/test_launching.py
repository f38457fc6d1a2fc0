"""Models of launches on drivers that pretend, NVIDIA's and AMD's: one by one, and as graphs."""

import gc

import numpy as np
import pytest

from anatune.core.compiler_facts import CompilerFacts
from anatune.emit.buffer import Buffer
from anatune.errors import RunError
from anatune.measure.cuda.driver import open_device
from anatune.measure.cuda.drivers.pycuda_backend import PyCuda
from anatune.network.compiling.targets.device_runner import DeviceRunner
from anatune.network.graph.summary import TensorSummary
from anatune.network.relax.device.program import DeviceKernel, DeviceLaunch, DeviceProgram, Region
from tests.unit.measure.cuda.test_driver import fake_pycuda
from tests.unit.measure.false_driver import FalseCuda, Kernel, false_device, floats
from tests.wording import refuses

ARCHS = ["sm_90", "gfx942"]
IMAGES = {"twice": b"\x7fELF 1", "plus": b"\x7fELF 2"}


def twice(x, y):
    y[:] = 2 * x


def plus(x, count, total, y):
    total += count.view(np.int32)
    y[:] = x + total


KERNELS = {
    IMAGES["twice"]: Kernel("twice", 2, 64, *floats((8, 8), twice)),
    IMAGES["plus"]: Kernel("plus", 1, 256, *floats((8, 1, 1, 8), plus)),
}
INPUTS = [TensorSummary("x", "float32", (8,)), TensorSummary("count", "int32", (1,))]
OUTPUTS = [TensorSummary("y", "float32", (8,))]
X = np.arange(8, dtype=np.float32)


def program():
    """y = 4 x + total, where total, a state, grows by the second input before."""
    facts, x, total = CompilerFacts(1), Region("input", 0, 0, 32), Region("state", 0, 0, 4)
    places = [Region("arena", 0, 0, 32), Region("arena", 0, 256, 32)]
    numbers, y = Region("input", 1, 0, 4), Region("output", 0, 0, 32)
    return DeviceProgram(
        (),
        (DeviceKernel(0, "twice", 0, 6, 2, 64, 0, 0, facts), DeviceKernel(0, "plus", 6, 6, 1, 256, 0, 0, facts)),
        (
            DeviceLaunch(0, (x, places[0]), None, "first"),
            DeviceLaunch(0, tuple(places), None, "second"),
            DeviceLaunch(1, (places[1], numbers, total, y), None, "last"),
        ),
        512,
        IMAGES["twice"] + IMAGES["plus"],
        (Buffer("total", "float32", (1,)),),
    )


def runner(device):
    own = DeviceRunner(program(), np.zeros(1, np.uint8), INPUTS, OUTPUTS, device)
    own.write_state([np.zeros(4, np.uint8)])
    return own


def count(number):
    return np.array([number], np.int32)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_runs_again_is_one_graph(arch):
    device, driver = false_device(KERNELS, arch)
    own = runner(device)
    assert (device.arch, device.index, own.index) == (arch, 0, 0)
    for step, total in ((1, 1), (2, 3), (3, 6)):
        (found,) = own.run([X + step, count(step)])
        np.testing.assert_array_equal(found, 4 * (X + step) + total)
    assert driver.launched == ["twice", "twice", "plus"] * 3
    calls = driver.calls
    assert (calls["cuLaunchKernel"], calls["cuGraphInstantiate"], calls["cuGraphLaunch"]) == (6, 1, 2)
    assert len(driver.alive) == 1
    assert own.times(2) == dict.fromkeys(("first", "second", "last"), pytest.approx(1e-6))
    assert calls["cuGraphLaunch"] == 2  # single launches are timed
    own.write_state([np.zeros(4, np.uint8)])
    np.testing.assert_array_equal(own.run([X, count(5)])[0], 4 * X + 5)
    np.testing.assert_array_equal(own.read_state()[0].view(np.float32), [5])
    del own
    gc.collect()
    assert not driver.alive
    assert not driver.memory


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("call", ["StreamCreate", "StreamBeginCapture", "StreamEndCapture", "GraphInstantiate"])
def test_without_graphs_launches_stay_one_by_one(arch, call):
    device, driver = false_device(KERNELS, arch, refuses=(call,))
    own = runner(device)
    for _ in range(3):
        (found,) = own.run([X, count(0)])
        np.testing.assert_array_equal(found, 4 * X)
    assert driver.launched == ["twice", "twice", "plus"] * 3
    assert driver.calls.get("cuGraphLaunch", 0) == 0
    assert driver.calls.get("cuStreamCreate", 0) <= 1  # it is asked for once
    assert not driver.alive


def test_pycuda_has_no_graphs():
    driver = FalseCuda(KERNELS)
    own = runner(open_device(backend=PyCuda(fake_pycuda(driver))))
    for _ in range(3):
        np.testing.assert_array_equal(own.run([X, count(0)])[0], 4 * X)
    assert driver.calls["cuLaunchKernel"] == 9


@pytest.mark.parametrize("arch", ARCHS)
def test_tensors_from_outside(arch):
    device, driver = false_device(KERNELS, arch)
    own = runner(device)
    pairs = [(device.allocate(32), device.allocate(32)) for _ in range(12)]

    def run(at):
        given, made = pairs[at]
        device.upload(given, X + at)
        own.run_on([given.address, made.address], [count(0)])
        found = np.empty(8, np.float32)
        device.download(made, found)
        np.testing.assert_array_equal(found, 4 * (X + at))

    for at in range(12):  # addresses that change cost no graph
        run(at)
    assert "cuGraphInstantiate" not in driver.calls
    assert len(own._launches) == 8
    for at in (10, 11) * 3:  # an allocator gives out two in turn
        run(at)
    assert (driver.calls["cuGraphInstantiate"], driver.calls["cuGraphLaunch"]) == (2, 6)
    for at in range(8):
        run(at)
    assert not driver.alive  # they went with their addresses
    run(7)
    assert driver.calls["cuGraphInstantiate"] == 3
    np.testing.assert_array_equal(own.run([X, count(0)])[0], 4 * X)


@pytest.mark.parametrize("arch", ARCHS)
def test_too_little_memory(arch):
    device, driver = false_device(KERNELS, arch, room=500)
    with refuses(RunError):
        runner(device)
    gc.collect()
    assert not driver.memory
