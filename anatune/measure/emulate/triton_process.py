"""Triton's interpreter in a separate process, with checked memory accesses and corrected arithmetic.

Each array is an address space: bits 44 and up of a pointer are the number of the array, the lower bits the byte. So
every access outside an array is detected, and elements that are read before they are written or written twice, and
operands that are written.

The interpreter of Triton 3.9 multiplies the bits of bfloat16 numbers as integers (triton issue 11584), does not round
to tf32, rounds halves up in conversions, and treats the scales of nvfp4 as powers of two. Here operands are decoded,
multiplied in float64 and added to sums in their type, and conversions round to nearest even (8-bit floats saturate), as
on devices.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.emit.buffer import Buffer
from anatune.errors import RunError
from anatune.measure.run.correctness import GUARD_FILL, Array, array_dtype
from anatune.measure.run.rounding import as_tf32
from anatune.named import import_optional
from anatune.templates.triton.program import TritonProgram

Bits = np.dtype[Any]
Handle = Any
"""A value in the interpreter: an array as `data`, Triton's type as `dtype`."""

_SPACE_BITS = 44


def run_program(program: TritonProgram, inputs: dict[str, Array]) -> dict[str, Array]:
    """Run a program and return its results by tensor; the environment of the process must have TRITON_INTERPRET=1.

    Raises
    ------
    RunError
        The program made an error, or Triton refuses it; the message says which.
    MissingDependencyError
        Triton is not installed.
    """
    interpreter = _interpreter()
    memory = _Memory(program, inputs)
    interpreter.anatune_memory = memory  # type: ignore[attr-defined]
    with np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        module = _module_of(program.source, Path(folder) / "kernels.py")
        _make_plain(module, interpreter)
        for kernel in program.kernels:
            memory.begin()
            pointers = [memory.spaces[buffer.tensor] for buffer in kernel.parameters]
            scalars = [] if program.extent is None else [program.extent]
            try:
                getattr(module, kernel.name)[(kernel.grid,)](*pointers, *scalars)
            except Exception as error:  # noqa: BLE001  any failure of a kernel is a result
                raise RunError(f"{kernel.name}: {_reason(error)}") from None
    return {tensor: memory.result(tensor) for tensor in (program.result, *program.further)}


def _interpreter() -> ModuleType:
    """Return Triton's interpreter with corrected arithmetic."""
    import_optional("triton", "triton", "running a Triton kernel on the CPU")
    interpreter = importlib.import_module("triton.runtime.interpreter")
    if not hasattr(interpreter, "anatune_memory"):
        _patch_interpreter(interpreter)
    return interpreter


def _module_of(source: str, path: Path) -> ModuleType:
    """Return a module made from its text, which is written to a file because Triton reads it."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("anatune_triton_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _make_plain(module: ModuleType, interpreter: ModuleType) -> None:
    """Make the loops of a module count in 32 bits and its constants plain integers, which Triton 3.7 needs."""
    constexpr = importlib.import_module("triton.language").constexpr
    vars(module).update({name: value.value for name, value in vars(module).items() if isinstance(value, constexpr)})
    vars(module)["range"] = _counter(interpreter)


def _reason(error: BaseException) -> str:
    """Return the original error in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[-1] if lines else "no message"
    return message if isinstance(error, RunError) else f"{type(error).__name__}: {message}"


# ---- memory ----


class _Space:
    """An array with the interface of a torch tensor that the interpreter uses."""

    def __init__(self, buffer: Buffer, values: Array, number: int, *, is_input: bool) -> None:
        self.tensor, self.values, self.is_input = buffer.tensor, values.reshape(-1), is_input
        self.dtype = f"torch.{buffer.dtype}"
        self.base = number << _SPACE_BITS
        self.written = np.zeros(0 if is_input else values.size, np.int8)
        """State of each element: 0 never written, 1 written before this launch, 2 written by this launch."""

    def data_ptr(self) -> int:
        return self.base

    def size(self) -> tuple[int, ...]:
        return self.values.shape

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def storage_offset(self) -> int:
        return 0

    def untyped_storage(self) -> _Space:
        return self

    def cpu(self) -> _Space:
        return self

    def new_empty(self, size: int, device: str) -> _Space:
        return self

    def set_(self, *view: object) -> None:
        """Do nothing, because the array is its own view."""

    def copy_(self, other: _Space) -> None:
        """Do nothing, because the array was not copied."""


class _Memory:
    """The arrays of a program."""

    def __init__(self, program: TritonProgram, inputs: dict[str, Array]) -> None:
        self.spaces: dict[str, _Space] = {}
        outputs = {program.result, *program.further} | ({program.workspace.tensor} if program.workspace else set())
        for kernel in program.kernels:
            for buffer in kernel.parameters:
                if buffer.tensor not in self.spaces:
                    number = len(self.spaces) + 1
                    is_input = buffer.tensor not in outputs
                    given = inputs.get(buffer.tensor)
                    values = _new_array(buffer) if given is None else np.array(given, order="C", copy=not is_input)
                    self.spaces[buffer.tensor] = _Space(buffer, values, number, is_input=is_input)
                    if given is not None and not is_input:  # unwritten elements keep their values
                        self.spaces[buffer.tensor].written[:] = 1
        self._by_number = [*self.spaces.values()]
        self._shapes = {tensor: buffer.shape for tensor, buffer in program.tensors.items()}

    def begin(self) -> None:
        """Begin a launch, which may read the results of previous launches."""
        for space in self._by_number:
            space.written[space.written == 2] = 1

    def result(self, tensor: str) -> Array:
        """Return the array of a result."""
        return self.spaces[tensor].values.reshape(self._shapes[tensor])

    def load(self, pointers: Array, mask: Array, other: Array, kind: Bits) -> Array:
        """Return the elements at addresses, or `other` if they are masked."""
        loaded = np.array(np.broadcast_to(other, pointers.shape), dtype=kind)
        if mask.any():
            space, elements = self._find(pointers[mask], kind.itemsize, "read")
            if not space.is_input and (space.written[elements] != 1).any():
                where = elements[np.argmax(space.written[elements] != 1)]
                raise RunError(f"{space.tensor} is read at element {where}, which no earlier launch has written")
            loaded[mask] = space.values[elements].view(kind)
        return loaded

    def store(self, pointers: Array, values: Array, mask: Array) -> None:
        """Write elements to the addresses that are not masked."""
        if not mask.any():
            return
        space, elements = self._find(pointers[mask], values.dtype.itemsize, "written")
        if space.is_input:
            raise RunError(f"{space.tensor}, an operand, is written at element {elements[0]}")
        again = space.written[elements] == 2
        if again.any() or len(np.unique(elements)) < len(elements):
            raise RunError(f"one launch writes element {elements[np.argmax(again)]} of {space.tensor} twice")
        space.written[elements] = 2
        space.values[elements] = values[mask].view(space.values.dtype)

    def _find(self, pointers: Array, itemsize: int, what: str) -> tuple[_Space, NDArray[np.int64]]:
        """Return the array that contains some addresses, and the numbers of its elements."""
        addresses = pointers.astype(np.int64)
        number = int(addresses[0] + (1 << (_SPACE_BITS - 1))) >> _SPACE_BITS  # nearest: it may lie before its array
        if not 1 <= number <= len(self._by_number):
            raise RunError(f"the address {int(addresses[0]):#x} is {what}, which is in no array")
        space = self._by_number[number - 1]
        elements, rest = np.divmod(addresses - space.base, itemsize)
        outside = (elements < 0) | (elements >= space.values.size) | (rest != 0)
        if itemsize != space.values.dtype.itemsize or outside.any():
            where = elements[np.argmax(outside)]
            raise RunError(f"{space.tensor} is {what} at element {where}, but it has {space.values.size} elements")
        return space, elements


def _new_array(buffer: Buffer) -> Array:
    """Return an array of unwritten elements."""
    array: Array = np.empty(buffer.shape, array_dtype(buffer.dtype))
    array.reshape(-1).view(np.uint8)[...] = GUARD_FILL
    return array


# ---- arithmetic ----


_NARROW = {
    "bf16": "bfloat16",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5": "float8_e5m2",
    "fp8e5b16": "float8_e5m2fnuz",
}
"""Types that the interpreter keeps as bits -> their names in ml_dtypes."""


def _decode(data: Array, kind: str) -> Array:
    """Return the numbers that an array holds in a type of Triton."""
    if kind not in _NARROW:
        return data
    import ml_dtypes

    decoded: Array = data.view(getattr(ml_dtypes, _NARROW[kind])).astype(np.float32)
    return decoded


def _encode(values: Array, kind: str, bits: Bits) -> Array:
    """Return numbers encoded in a type of Triton; 8-bit floats saturate. Source: [PTX-ISA] cvt.satfinite."""
    encoded: Array = values
    if kind in _NARROW:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, _NARROW[kind]))
        if dtype.itemsize == 1:
            most = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
            encoded = np.clip(encoded, -most, most)
        encoded = encoded.astype(np.float32).astype(dtype).view(bits)
    return encoded.astype(bits)


def _product(left: Array, right: Array, kinds: tuple[str, str], sums: Array, *, tf32: bool) -> Array:
    """Return sums with the products of a tile added, in the type of the sums."""
    first, second = (_decode(data, kind) for data, kind in zip((left, right), kinds, strict=True))
    if tf32 and first.dtype == np.float32 and kinds == ("fp32", "fp32"):
        first, second = as_tf32(first), as_tf32(second)
    products = np.matmul(first.astype(np.float64), second.astype(np.float64))
    exact = np.int64 if sums.dtype.kind == "i" else sums.dtype
    added: Array = sums.astype(exact) + products.astype(exact)
    return added.astype(sums.dtype)  # integers wrap around


def _patch_interpreter(interpreter: ModuleType) -> None:
    """Replace the memory accesses, the arithmetic and the loops of the interpreter."""
    language = importlib.import_module("triton.language")
    builder, handle, bits_of = interpreter.InterpreterBuilder, interpreter.TensorHandle, interpreter._get_np_dtype
    tf32 = interpreter._ir.INPUT_PRECISION.TF32

    def expand_mask(pointers: Handle, mask: Handle) -> Array:
        # one condition for a whole tile arrives as an integer
        return np.broadcast_to(np.asarray(mask.data).astype(np.bool_), pointers.data.shape)

    def load(self: object, pointers: Handle, mask: Handle, other: Handle, *how: object, **more: object) -> object:
        kind = pointers.get_element_ty()
        kept = np.frombuffer(bytes([GUARD_FILL] * 8), bits_of(kind))[0] if other is None else other.data
        memory: _Memory = interpreter.anatune_memory
        return handle(memory.load(pointers.data, expand_mask(pointers, mask), kept, bits_of(kind)), kind)

    def store(self: object, pointers: Handle, values: Handle, mask: Handle, *how: object) -> None:
        memory: _Memory = interpreter.anatune_memory
        memory.store(pointers.data, np.broadcast_to(values.data, pointers.data.shape), expand_mask(pointers, mask))

    def cast(self: object, source: Handle, kind: Handle, *how: object) -> object:
        kind = kind.scalar
        return handle(_encode(_decode(source.data, source.dtype.scalar.name), kind.name, bits_of(kind)), kind)

    def dot(self: object, left: Handle, right: Handle, sums: Handle, precision: object, *how: object) -> object:
        kinds = (left.dtype.scalar.name, right.dtype.scalar.name)
        product = _product(left.data, right.data, kinds, sums.data, tf32=precision == tf32)
        return handle(product, sums.dtype.scalar)

    scale_of = getattr(interpreter, "_dot_scaled_scale_to_f32", None)

    def scale(scales: Handle, kind: Handle) -> Array:
        name = scales.dtype.scalar.name
        decoded: Array = _decode(scales.data, name) if name in _NARROW else scale_of(scales, kind)  # type: ignore[misc]
        return decoded

    interpreter._dot_scaled_scale_to_f32 = scale  # type: ignore[attr-defined]
    builder.create_masked_load, builder.create_masked_store = load, store
    builder.cast_impl, builder.create_fp_to_fp, builder.create_dot = cast, cast, dot
    patch = interpreter._patch_lang_core

    def patch_scope(lang: Handle, *scope: Handle) -> None:
        patch(lang, *scope)
        for name, numbers in (("range", _counter(interpreter)), ("static_range", _constants(language))):
            (scope[0].set_attr if scope else setattr)(lang, name, numbers)

    interpreter._patch_lang_core = patch_scope  # type: ignore[attr-defined]


def _numbers(bounds: tuple[object, ...]) -> range:
    """Return the numbers between bounds that may be Triton's."""
    return range(*(int(getattr(bound, "value", bound)) for bound in bounds))  # type: ignore[call-overload]


def _counter(interpreter: ModuleType) -> Callable[..., Iterator[object]]:
    """Return a ``range`` whose numbers are those of a device."""
    language = importlib.import_module("triton.language")

    def count(*bounds: object, **how: object) -> Iterator[object]:
        for number in _numbers(bounds):
            yield language.tensor(
                interpreter.TensorHandle(np.array([number], np.int32), language.int32), language.int32
            )

    return count


def _constants(language: ModuleType) -> Callable[..., Iterator[object]]:
    """Return a ``static_range``, whose numbers the compiler knows."""

    def count(*bounds: object, **how: object) -> Iterator[object]:
        for number in _numbers(bounds):
            yield language.constexpr(number)

    return count
