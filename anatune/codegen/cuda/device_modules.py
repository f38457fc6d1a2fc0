"""Cubins inside TVM's CUDA modules, made where there is no GPU, driver or CUDA toolkit.

TVM hands CUDA C to its CUDA runtime, which asks a callback to compile it. Where that runtime cannot be loaded (it needs
a driver), TVM makes a module that holds CUDA C, to be compiled where it will be loaded, by whatever is installed there.
`Cubins` answers the callback with what NVRTC made in this process; in the other case it lets TVM write a text of the
cubin's length, and puts the cubin in its place in the library (`Cubins.embed`).
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
from anatune.codegen.cuda.lower import helpers_of
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.cuda.preamble import NUMBERS, preamble
from anatune.errors import BuildError
from anatune.templates.gpu.kernel import CudaKernel
from anatune.threads import new_lock
from anatune.untyped import tvm

__all__ = ["Cubins"]

_SOURCE, _CUBIN = b"cuda", b"cubin"
"""TVM's words for what a CUDA module holds."""
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')
_TYPES = {"float16": "half", "bfloat16": "nv_bfloat16"}
_hooks = new_lock()
"""Callbacks are the process's."""


class Cubins:
    """The cubins of one library. One object a library, one thread at a time.

    Parameters
    ----------
    arch : str
        "sm_86".
    """

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.compiled: list[tuple[str, Cubin]] = []
        """CUDA C that TVM wrote, complete, and what became of it."""
        self._images: dict[str, bytes] = {}
        self._given: Cubin | None = None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Compile here whatever CUDA C TVM writes inside; errors of NVRTC arrive as TVM's."""
        import tvm_ffi

        names = ("tvm_callback_cuda_postproc", "tvm_callback_cuda_compile")
        with _hooks:
            import_tvm()
            former = [tvm_ffi.get_global_func(name, allow_missing=True) for name in names]
            tvm_ffi.register_global_func(names[0], self._written, override=True)
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
        """Return TVM's module of a kernel with `cubin` in it: what `part` would be compiled to.

        Raises
        ------
        BuildError
            TVM refuses it.
        """
        with self.building():
            self._given = cubin
            try:
                return part.built()
            except TVM_ERRORS as error:
                raise BuildError(f"TVM cannot make a module of {cubin.name}: {last_line(error)}") from None
            finally:
                self._given = None

    def embed(self, library: Path) -> None:
        """Put the cubins into a library that TVM wrote, where it holds their places.

        Raises
        ------
        BuildError
            It is written in another way than this version of TVM's, or cannot be changed.
        """
        try:
            content = library.read_bytes()
            if not any(mark.encode() in content for mark in self._images):
                return  # the CUDA runtime was there, and wrote the cubins itself
            with library.open("r+b") as stream:
                for mark, image in self._images.items():
                    place, piece = _changed(content, mark.encode(), image)
                    stream.seek(place)
                    stream.write(piece)
        except OSError as error:
            raise BuildError(f"{library}: {error.strerror or error}; free some space or name another TMPDIR") from None

    def _written(self, text: str, _target: tvm.target.Target) -> str:
        """Return what stands for a text in the module: a mark, as long as what `embed` puts there."""
        cubin = self._given or self._compiled(str(text))
        mark = secrets.token_hex(16)
        self._images[mark] = cubin.image
        return mark.ljust(len(cubin.image) + len(_CUBIN) - len(_SOURCE), ".")

    def _image(self, text: str) -> bytes:
        return self._images[str(text).rstrip(".")]

    def _compiled(self, text: str) -> Cubin:
        start = text.index('extern "C" __global__')
        name = _KERNEL.search(text, start)
        if name is None:
            raise BuildError("TVM generated CUDA C without a kernel; this is a defect of anatune")
        types = [dtype for dtype, word in _TYPES.items() if re.search(rf"\b{word}\d?\b", text[start:])]
        source = preamble(types) + NUMBERS + helpers_of(text) + text[start:]
        kernel = CudaKernel(
            schedule_key="", name=name[1], source=source, arch=self.arch, parameters=(), result="", grid=1, block=1
        )
        cubin = compile_kernel(kernel)
        self.compiled.append((source, cubin))
        return cubin


def _changed(content: bytes, mark: bytes, image: bytes) -> tuple[int, bytes]:
    """Return where a library's module with the text of `mark` begins, and what shall stand there.

    A module is three texts behind each other, format, functions and code, each with its length before it (8 bytes,
    little-endian), and the length of the whole before that. Source: TVM 0.27, CUDAModuleNode::SaveToBytes.
    """
    at = content.find(mark)
    head = content.rfind(_text(_SOURCE), 0, at)
    if min(at, head) < 16 or content.find(mark, at + 1) >= 0:
        raise BuildError("TVM wrote a CUDA module in another form than 0.27's; install the version that anatune names")
    (length,) = struct.unpack_from("<Q", content, at - 8)
    (whole,) = struct.unpack_from("<Q", content, head - 8)
    functions = content[head + len(_text(_SOURCE)) : at - 8]
    piece = _text(_CUBIN) + functions + _text(image)
    if whole != at + length - head or len(piece) != whole:
        raise BuildError("TVM wrote a CUDA module in another form than 0.27's; install the version that anatune names")
    return head, piece


def _text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content
