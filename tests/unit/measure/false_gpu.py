"""A GPU that is not there: a driver backend whose launches do what the probes should do and take the time they say."""

from typing import NamedTuple

import numpy as np

from anatune.codegen.cuda.memory_probes import CHASE_UNROLL, LINE_BYTES
from anatune.errors import RunError
from anatune.measure.cuda.calibration.probe_checks import _compute_expected
from anatune.measure.cuda.driver import GpuDevice

CLOCK_HZ = 1.5e9
LATENCY_CYCLES = {"mma": 33.0, "shared": 30.0, "l1": 40.0, "l2": 250.0, "dram": 500.0}
LAUNCH_S = 2e-6


class Image(NamedTuple):
    """What the false compiler returns."""

    image: bytes


class FalseBackend:
    """One device of 4 SMs with 128 lanes, as much of `gpu_backends.Backend` as is used.

    `wrong`: kinds of probes that compute nothing; `noise`: share by which times vary; `broken`: kinds whose launch is
    refused.
    """

    name = "false"

    def __init__(self, *, capability=(9, 0), sms=4, wrong=(), broken=(), noise=0.0, timer=True, memory=1 << 40):
        self.capability, self.sms, self.wrong, self.broken, self.noise = capability, sms, wrong, broken, noise
        self.timer, self.free_bytes = timer, memory
        self.probes, self.memory, self.now = {}, {}, 0.0
        self.next_address = 1 << 20
        self.rng = np.random.default_rng(0)

    def compile(self, probe):
        image = probe.kernel.source.encode()
        self.probes[image] = probe
        return Image(image)

    def device(self):
        return GpuDevice(self)

    # ---- the backend ----------------------------------------------------------------------------------------------

    def count(self):
        return 1

    def version(self):
        return 13000

    def device_name(self, index):
        return "NVIDIA H200"

    def attribute(self, index, name):
        major, minor = self.capability
        return {
            "COMPUTE_CAPABILITY_MAJOR": major,
            "COMPUTE_CAPABILITY_MINOR": minor,
            "MULTIPROCESSOR_COUNT": self.sms,
            "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
            "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
            "L2_CACHE_SIZE": 1 << 20,
            "MAX_GRID_DIM_X": 1 << 30,
        }.get(name, 1)

    def arch(self, index):
        return "sm_{}{}".format(*self.capability)

    def open(self, index):
        self.is_open = True

    def close(self):
        self.is_open = False

    def load(self, image):
        return self.probes[image]

    def unload(self, module):
        pass

    def function(self, module, name):
        assert module.kernel.name == name
        return module

    def function_attribute(self, function, name):
        return {"MAX_THREADS_PER_BLOCK": 1024, "SHARED_SIZE_BYTES": function.kernel.shared_bytes}.get(name, 0)

    def allocate(self, num_bytes):
        if num_bytes > self.free_bytes:
            raise RunError("the GPU's driver refused: OUT_OF_MEMORY from cuMemAlloc")
        address = self.next_address
        self.next_address += -(-num_bytes // 256) * 256
        self.memory[address] = np.zeros(num_bytes, dtype=np.uint8)
        return address, address

    def free(self, handle):
        del self.memory[handle]

    def copy_in(self, address, source):
        self.memory[address][: source.size] = source

    def copy_out(self, target, address):
        target[...] = self.memory[address][: target.size]

    def fill(self, address, byte, num_bytes):
        self.memory[address][:num_bytes] = byte

    def launcher(self, function, grid, block, shared_bytes, arguments):
        assert (grid[0], block[0]) == (function.kernel.grid, function.kernel.block)
        if function.kind in self.broken:
            raise RunError("the GPU's driver refused: LAUNCH_FAILED")
        buffers = {
            buffer.tensor: self.memory[int(address)].view(buffer.dtype)
            for buffer, address in zip(function.kernel.parameters, arguments, strict=True)
        }
        return lambda: self.run(
            function, buffers, {b.tensor: int(a) for b, a in zip(function.kernel.parameters, arguments, strict=True)}
        )

    def event(self):
        return [0.0]

    def record(self, event):
        event[0] = self.now

    def elapsed_s(self, start, stop):
        return stop[0] - start[0]

    def synchronize(self):
        pass

    # ---- what the probes do ---------------------------------------------------------------------------------------

    def run(self, probe, buffers, addresses):
        rounds, before = (int(value) for value in buffers["rounds"][:2])
        if probe.kind == "link":
            words = LINE_BYTES // 8
            buffers["result"][::words] = addresses["result"] + buffers["input"][::words]
        elif rounds <= 3 and probe.kind not in ("spin", "empty", *self.wrong):
            given = buffers["input"]
            if probe.kind == "chase_global":
                given = given - np.uint64(addresses["input"])
            found = _compute_expected(probe, given, rounds, before).reshape(-1)
            buffers["result"][: found.size] = found
        seconds = self.seconds(probe, rounds) * (1.0 + self.noise * self.rng.standard_normal())
        self.now += seconds
        if probe.kind not in ("spin", "empty", "link"):
            buffers["times"][0::2] = round(seconds * CLOCK_HZ)
            buffers["times"][1::2] = round(seconds * 1e9) * self.timer

    def seconds(self, probe, rounds):
        """One SM reaches 120 of 128 multiply-adds a cycle with 8 warps of 4 chains or more."""
        work, kernel = probe.work * rounds, probe.kernel
        facts = probe.facts
        if probe.kind == "multiply_add":
            lanes = {"float32": 1, "float16": 2, "int8": 4}[facts["dtype"]]
            hidden = kernel.block * int(facts["chains"]) / 4.0  # an instruction in four cycles each
            return work / lanes / min(120.0 if lanes < 4 else 60.0, hidden) / CLOCK_HZ
        if probe.kind == "matrix_unit":
            if kernel.block == 32:
                return work / (16 * 8 * 16) * LATENCY_CYCLES["mma"] / CLOCK_HZ
            return work / {"float16": 2048, "bfloat16": 2048, "tfloat32": 1024}[facts["dtype"]] / CLOCK_HZ
        if probe.kind == "read_shared":
            return work / (124.0 if facts["width"] == 16 else 100.0) / CLOCK_HZ
        if probe.kind == "read_global":
            return work * kernel.grid / (5e12 if facts["num_bytes"] <= 1 << 20 else 4e12)
        if probe.kind == "copy":
            return work * kernel.grid / 3.8e12
        if probe.kind == "chase_shared":
            return work * LATENCY_CYCLES["shared"] / CLOCK_HZ
        if probe.kind == "chase_global":
            cold = rounds > 3 and facts["lines"] > 1 << 16
            level = "dram" if cold else str(facts["level"])
            assert probe.work == CHASE_UNROLL
            return work * LATENCY_CYCLES[level] / CLOCK_HZ
        return LAUNCH_S if probe.kind == "empty" else 1e-6
