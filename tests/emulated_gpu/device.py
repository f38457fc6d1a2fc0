"""Lets TVM's CUDA runtime run in this process, on the CPU: driver.c stands for NVIDIA's libraries.

A process that made a `Device` can do nothing else with CUDA.
"""

import ctypes
import hashlib
import os
import re
import struct
import subprocess
from pathlib import Path

import numpy as np

from anatune.emit.buffer import Buffer
from anatune.measure.emulate.emulator import EmulatedKernel
from anatune.templates.gpu.kernel import CudaKernel

_TYPES = {
    "float": "float32",
    "int": "int32",
    "int64_t": "int64",
    "signed char": "int8",
    "uchar": "uint8",
    "bool": "bool",
}
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))
)


class Device:
    """Runs what is launched: kernels of the cubins that are loaded, by the CUDA C that these were made of.

    Parameters
    ----------
    folder : Path
        Where driver.c is compiled to.
    sources : dict of str to CudaKernel
        sha256 of a cubin -> what was compiled.
    arch : str
        "sm_86".

    Attributes
    ----------
    launches : list of (name, grid, block, dynamic shared bytes)
    problems : list of str
        What went wrong: errors are lost in C.
    """

    def __init__(self, folder, sources, arch):
        self.sources, self.arch = sources, arch
        self.launches, self.problems = [], []
        self._modules, self._functions, self._emulated = [], [], {}
        os.environ["EMULATED_GPU_ARCH"] = re.sub(r"\D", "", arch)
        versions = folder / "version.map"
        versions.write_text("libcudart.so.13 { global: *; };\n")
        build = ["cc", "-shared", "-fPIC", "-w", "-O1", str(Path(__file__).with_name("driver.c"))]
        libraries = {}
        for name, extra in (
            ("libcuda.so.1", []),
            ("libcudart.so.13", ["-DRUNTIME", f"-Wl,--version-script={versions}"]),
        ):
            subprocess.run([*build, *extra, f"-Wl,-soname,{name}", "-o", str(folder / name)], check=True)
            libraries[name] = ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
        self._calls = (_LOAD(self._load), _FIND(self._find), _LAUNCH(self._launch))
        libraries["libcuda.so.1"].emulated_gpu(*(ctypes.cast(one, ctypes.c_void_p) for one in self._calls))
        self._room = libraries["libcudart.so.13"].emulated_room
        self._room.restype, self._room.argtypes = ctypes.c_size_t, [ctypes.c_void_p]

    def _load(self, image):
        digest = hashlib.sha256(ctypes.string_at(image, _elf_bytes(image))).hexdigest()
        if digest not in self.sources:
            self.problems.append("a module was loaded that is none of the cubins")
            return -1
        self._modules.append(self.sources[digest])
        return len(self._modules) - 1

    def _find(self, module, name):
        self._functions.append((self._modules[module], name.decode()))
        return len(self._functions) - 1

    def _launch(self, function, config, values):
        compiled, name = self._functions[function]
        try:
            self._run(compiled, name, config[0:3], config[3:6], config[6], values)
        except Exception as error:  # noqa: BLE001 - it would be lost in C
            self.problems.append(f"{name}: {error}")
            return 1
        return 0

    def _run(self, compiled, name, grid, block, shared, values):
        self.launches.append((name, grid[0], block[0], shared))
        assert grid[1:] == block[1:] == [1, 1], (grid, block)
        pointers = {}
        prototype = re.search(rf"\b{name}\(([^)]*)\)", compiled.source)[1]
        for at, words in enumerate(prototype.split(",")):
            kind, parameter = re.match(r"\s*(.*?)\s*\*\s*(?:__restrict__)?\s*(\w+)_ptr$", words).groups()
            pointers[parameter] = values[at].contents.value, _TYPES[kind]
        kernel = compiled
        if not compiled.parameters:
            kernel = self._of_tvm(compiled.source, name, grid[0], block[0], shared, pointers)
        (number,) = [at for at, launch in enumerate(kernel.launches) if launch.name == name]
        taken = kernel.launches[number]
        assert (taken.grid, taken.block, taken.dynamic_shared_bytes) == (grid[0], block[0], shared)
        key = (kernel.name, kernel.parameters)
        if key not in self._emulated:
            self._emulated[key] = EmulatedKernel(kernel)
        arrays = {}
        for buffer in taken.parameters:
            address, _ = pointers[buffer.tensor]
            size = int(np.prod(buffer.shape)) * np.dtype(buffer.dtype).itemsize
            assert size <= self._room(address), f"{buffer.tensor} is smaller than the kernel takes it for"
            memory = (ctypes.c_uint8 * size).from_address(address)
            arrays[buffer.tensor] = np.frombuffer(memory, buffer.dtype).reshape(buffer.shape)
        self._emulated[key].run(arrays, launch=number)

    def _of_tvm(self, source, name, grid, block, shared, pointers):
        """Return a kernel that TVM wrote: its arrays are as large as there is room for."""
        start = source.index("{", source.rindex(f" {name}("))
        body = source[start : source.find("\n}\n", start)]
        (written,) = [
            one for one in pointers if re.search(rf"\b{one}_ptr\b[^;=]*\] = |atomicAdd\(\(&\({one}_ptr\b", body)
        ]
        buffers = [
            Buffer(one, dtype, (self._room(address) // np.dtype(dtype).itemsize,))
            for one, (address, dtype) in pointers.items()
        ]
        return CudaKernel(
            schedule_key="", name=name, source=source, arch=self.arch, parameters=tuple(buffers), result=written,
            grid=grid, block=block, shared_bytes=shared, dynamic_shared_bytes=shared,
        )  # fmt: skip


def _elf_bytes(image):
    """Return the size of a 64-bit ELF file in memory: its tables lie behind everything else."""
    head = ctypes.string_at(image, 64)
    if head[:4] != b"\x7fELF":
        return 64
    programs, sections = struct.unpack_from("<QQ", head, 32)
    program_bytes, num_programs, section_bytes, num_sections = struct.unpack_from("<HHHH", head, 54)
    return max(programs + program_bytes * num_programs, sections + section_bytes * num_sections)
