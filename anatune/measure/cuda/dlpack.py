"""Addresses, shapes and dtypes of tensors in GPU memory of any library, by DLPack."""

from __future__ import annotations

import ctypes

from anatune.errors import RunError

_CUDA, _ROCM = (2, 1), (10, 0)
"""Kind of device, and its legacy default stream, to which launches go and on which the producer of a tensor waits for
its computation. Source: DLPack 1.1, ``dlpack.h``; Python's array API standard, ``__dlpack__``."""
_ALIGNMENT = 16
_TYPES = {
    "float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "float64": (2, 64),
    "int8": (0, 8), "uint8": (1, 8), "bool": (6, 8),
    "int16": (0, 16), "uint16": (1, 16), "int32": (0, 32), "uint32": (1, 32), "int64": (0, 64), "uint64": (1, 64),
    "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8),
}  # fmt: skip
"""dtype -> code and bits. Source: DLPack 1.1, ``dlpack.h``."""


class _Tensor(ctypes.Structure):
    """``DLTensor`` of ``dlpack.h``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def device_address(name: str, dtype: str, sizes: tuple[int, ...], tensor: object, index: int, arch: str = "") -> int:
    """Return the address of a tensor that is an argument of a kernel or a network.

    Parameters
    ----------
    name, dtype, sizes
        The name for messages, and the expected dtype and shape.
    tensor
        An object with ``__dlpack__`` and ``__dlpack_device__``.
    index : int
        Number of the device.
    arch : str
        Its architecture: "gfx..." is ROCm for DLPack, others are CUDA.

    Raises
    ------
    RunError
        The tensor is not on that device, has another shape or dtype, is not C-contiguous, or is not aligned.
    """
    if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
        raise RunError(f"{name} is of type {type(tensor).__name__}, expected a tensor with DLPack (PyTorch, CuPy, JAX)")
    dlpack_device = tuple(int(number) for number in tensor.__dlpack_device__())
    kind, stream = _ROCM if arch.startswith("gfx") else _CUDA
    if dlpack_device != (kind, index):
        raise RunError(f"{name} is on DLPack device {dlpack_device}, expected {(kind, index)}; move it to the GPU")
    try:
        capsule = tensor.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError) as error:
        raise RunError(f"{name} cannot be passed by DLPack ({error!s:.120}); detach it, or copy it first") from error
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    view = _Tensor.from_address(pointer(capsule, b"dltensor"))
    shape = tuple(view.shape[at] for at in range(view.ndim))
    if shape != sizes or (view.code, view.bits, view.lanes) != (*_TYPES[dtype], 1):
        raise RunError(
            f"{name} has the DLPack type {(view.code, view.bits)} and shape {shape}, expected {dtype} {_TYPES[dtype]} "
            f"of shape {sizes}"
        )
    if view.strides and not _is_contiguous(shape, [view.strides[at] for at in range(view.ndim)]):
        raise RunError(f"{name} is not C-contiguous; make a contiguous copy first")
    address = int(view.data or 0) + int(view.byte_offset)
    if address % _ALIGNMENT:
        raise RunError(f"{name} begins at {address:#x}, expected a multiple of {_ALIGNMENT} bytes; copy it first")
    return address


def _is_contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    """Return whether strides, in elements, are those of C order; dimensions of size 1 may have any stride."""
    step = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != step:
            return False
        step *= length
    return True
