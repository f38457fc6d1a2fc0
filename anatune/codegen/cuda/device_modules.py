"""Cubins inside TVM's CUDA modules, on machines without GPU, driver or CUDA toolkit.

TVM passes CUDA C to its CUDA runtime, which calls a callback to compile it. If this runtime cannot be loaded (it needs
a driver), TVM makes a module that holds the CUDA C, which the machine that loads it compiles with its own compiler.
`Cubins` answers the callback with cubins that NVRTC made in this process. In the other case it lets TVM write a
placeholder text of the cubin's length, and replaces it by the cubin in the library (`Cubins.embed`).
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anatune.codegen.compat import TVM_ERRORS, DevicePart, import_tvm, last_line
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.lower import extract_helpers
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.cuda.preamble import NUMBERS, make_preamble
from anatune.errors import BuildError
from anatune.templates.gpu.kernel import CudaKernel
from anatune.threads import new_lock
from anatune.untyped import tvm

__all__ = ["Cubins"]

_SOURCE, _CUBIN = b"cuda", b"cubin"
"""TVM's words for the format of a CUDA module's code."""
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')
_TYPES = {"float16": "half", "bfloat16": "nv_bfloat16"}
_hooks = new_lock()
"""Lock for the callbacks, which belong to the process."""


class Cubins:
    """The cubins of one library: one object for each library, used by one thread at a time.

    Parameters
    ----------
    arch : str
        Architecture, for example "sm_86".
    """

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.compiled: list[tuple[str, Cubin]] = []
        """The complete CUDA C that TVM wrote, and its cubin."""
        self._images: dict[str, bytes] = {}
        self._given: Cubin | None = None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Compile the CUDA C that TVM writes inside the block; errors of NVRTC arrive as TVM's."""
        import tvm_ffi

        names = ("tvm_callback_cuda_postproc", "tvm_callback_cuda_compile")
        with _hooks:
            import_tvm()
            former = [tvm_ffi.get_global_func(name, allow_missing=True) for name in names]
            tvm_ffi.register_global_func(names[0], self._replace_text, override=True)
            tvm_ffi.register_global_func(names[1], self._image, override=True)
            try:
                yield
            finally:
                for name, function in zip(names, former, strict=True):
                    if function is None:
                        tvm_ffi.registry.remove_global_func(name)
                    else:
                        tvm_ffi.register_global_func(name, function, override=True)

    def module(self, part: DevicePart, cubin: Cubin) -> tvm.runtime.Module:
        """Return TVM's module of a kernel that contains `cubin` as its code.

        Raises
        ------
        BuildError
            TVM refuses it.
        """
        with self.building():
            self._given = cubin
            try:
                return part.compile_module()
            except TVM_ERRORS as error:
                raise BuildError(f"TVM cannot make a module of {cubin.name}: {last_line(error)}") from None
            finally:
                self._given = None

    def embed(self, library: Path) -> None:
        """Write the cubins into a library that TVM wrote with placeholders.

        Raises
        ------
        BuildError
            The library was written by another version of TVM, or cannot be changed.
        """
        try:
            content = library.read_bytes()
            if not any(mark.encode() in content for mark in self._images):
                return  # the CUDA runtime was loaded and wrote the cubins itself
            with library.open("r+b") as stream:
                for mark, image in self._images.items():
                    position, piece = _replace_code(content, mark.encode(), image)
                    stream.seek(position)
                    stream.write(piece)
        except OSError as error:
            raise BuildError(f"{library}: {error.strerror or error}; free some space or name another TMPDIR") from None

    def _replace_text(self, text: str, _target: tvm.target.Target) -> str:
        """Return the placeholder for a source text: a mark, as long as the cubin that `embed` writes."""
        cubin = self._given or self._compile_text(str(text))
        mark = secrets.token_hex(16)
        self._images[mark] = cubin.image
        return mark.ljust(len(cubin.image) + len(_CUBIN) - len(_SOURCE), ".")

    def _image(self, text: str) -> bytes:
        return self._images[str(text).rstrip(".")]

    def _compile_text(self, text: str) -> Cubin:
        start = text.index('extern "C" __global__')
        name = _KERNEL.search(text, start)
        if name is None:
            raise BuildError("TVM generated CUDA C without a kernel; this is a defect of anatune")
        types = [dtype for dtype, word in _TYPES.items() if re.search(rf"\b{word}\d?\b", text[start:])]
        source = make_preamble(types) + NUMBERS + extract_helpers(text) + text[start:]
        kernel = CudaKernel(
            schedule_key="", name=name[1], source=source, arch=self.arch, parameters=(), result="", grid=1, block=1
        )
        cubin = compile_kernel(kernel)
        self.compiled.append((source, cubin))
        return cubin


def _replace_code(content: bytes, mark: bytes, image: bytes) -> tuple[int, bytes]:
    """Return the position of a library's module with the text of `mark`, and its new content.

    A module consists of three texts (format, functions and code), each preceded by its length (8 bytes, little-endian),
    and is itself preceded by its length. Source: TVM 0.27, CUDAModuleNode::SaveToBytes.
    """
    position = content.find(mark)
    head = content.rfind(_encode_text(_SOURCE), 0, position)
    if min(position, head) < 16 or content.find(mark, position + 1) >= 0:
        raise BuildError("TVM wrote a CUDA module in another form than 0.27's; install the version that anatune names")
    (length,) = struct.unpack_from("<Q", content, position - 8)
    (whole,) = struct.unpack_from("<Q", content, head - 8)
    functions = content[head + len(_encode_text(_SOURCE)) : position - 8]
    piece = _encode_text(_CUBIN) + functions + _encode_text(image)
    if whole != position + length - head or len(piece) != whole:
        raise BuildError("TVM wrote a CUDA module in another form than 0.27's; install the version that anatune names")
    return head, piece


def _encode_text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content
