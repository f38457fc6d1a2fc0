"""Readers of operators that create tensors, and of Fourier transforms, which are products with constant matrices."""

from __future__ import annotations

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, matmul, permute, reshape, take_slices
from anatune.network.graph.nodes import Array, Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError, check_table

__all__ = ["READERS"]


def _constant(call: OnnxCall) -> Value:
    for name, value in call.attributes.items():
        if name in ("value", "sparse_value"):
            if np.asarray(value).dtype.kind in "OSU":
                raise RefusedError("is text, expected numbers")
            return constant(value, np.asarray(value).dtype.name)
        if name in ("value_float", "value_floats"):
            return constant(value, "float32")
        if name in ("value_int", "value_ints"):
            return constant(value, "int64")
    raise RefusedError("has no value, expected numbers")


def _constant_of_shape(call: OnnxCall) -> Value:
    number = call.attributes.get("value", np.zeros(1, "float32"))
    sizes = [int(size) for size in call.constant_values(0, "the shape").reshape(-1)]
    return broadcast(constant(number.reshape(()), number.dtype.name), sizes)


def _range(call: OnnxCall) -> Value:
    start, limit, step = (
        call.constant_values(index, name).reshape(()).item() if index < 2 or call.get(index) is not None else 1
        for index, name in enumerate(("the start", "the limit", "the step"))
    )
    count = max(0, int(np.ceil((limit - start) / step)))
    check_table(count)
    return constant(start + step * np.arange(count), call.kind().dtype)


def _bit_cast(call: OnnxCall) -> Value:
    """Return the bits of constant numbers as another dtype; graphs have no operator that does this at run time."""
    return constant(call.constant_values(0, "bits").view(call.dtype("to")), call.dtype("to"))


def _eye_like(call: OnnxCall) -> Value:
    rows, columns = call.kind().shape
    check_table(rows, columns)
    return constant(np.eye(rows, columns, call.attributes["k"]), call.dtype("dtype", call.kind().dtype))


# ---- Fourier transforms ----


def _fourier_matrix(size: int, parts: int, length: int, *, inverse: bool, onesided: bool) -> Array:
    """Return the matrix of a Fourier transform; complex numbers are pairs.

    Parameters
    ----------
    size : int
        Elements of the input. Fewer than `length` are padded with zeros, more are cropped.
    parts : int
        Numbers of an element: 1, or 2 for complex ones.

    Returns
    -------
    ndarray
        (size * parts, results * parts of a result); results of the inverse of half a spectrum are real.
    """
    check_table(size, parts, length, 2)
    units = np.eye(size)
    if inverse and onesided:
        of_parts = [np.fft.irfft(units * factor, length, axis=1)[..., None] for factor in (1, 1j)[:parts]]
    else:
        transform = np.fft.ifft if inverse else np.fft.fft
        spectra = [transform(units * factor, length, axis=1) for factor in (1, 1j)[:parts]]
        count = length // 2 + 1 if onesided else length
        of_parts = [np.stack([spectrum.real, spectrum.imag], axis=-1)[:, :count] for spectrum in spectra]
    return np.stack(of_parts, axis=1).reshape(size * parts, -1)


def _transform(value: Value, length: int, *, inverse: bool, onesided: bool) -> Value:
    """Return the transform along the last dimension but one; the last dimension holds the parts of complex numbers."""
    *outer, size, parts = tensor_type(value).shape
    dtype = tensor_type(value).dtype
    matrix = _fourier_matrix(size, parts, length, inverse=inverse, onesided=onesided)
    spectrum = matmul(reshape(value, (*outer, size * parts)), constant(matrix, dtype))
    return reshape(spectrum, (*outer, -1, 1 if inverse and onesided else 2))


def _widen(value: Value) -> Value:
    """Return a value in float32, or unchanged if it is float64."""
    return value if tensor_type(value).dtype == "float64" else cast(value, "float32")


def _dft(call: OnnxCall) -> Value:
    """Return a transform along an axis, which is an attribute before version 20 and an operand later."""
    axis = call.attributes.get("axis", -2) if call.get(2) is None else int(call.constant_values(2, "the axis").item())
    axis, inverse, onesided = axis % call.rank, bool(call.attributes["inverse"]), bool(call.attributes["onesided"])
    size = call.kind().shape[axis]
    length = 2 * (size - 1) if inverse and onesided else size
    if call.get(1) is not None:
        length = int(call.constant_values(1, "the length").item())
    order = list(range(call.rank))
    order.insert(call.rank - 2, order.pop(axis))
    spectrum = _transform(permute(_widen(call[0]), order), length, inverse=inverse, onesided=onesided)
    return cast(permute(spectrum, np.argsort(order).tolist()), call.kind().dtype)


def _stft(call: OnnxCall) -> Value:
    """Return the Fourier transforms of windows of a signal."""
    batch, samples, *parts = call.kind().shape
    step = int(call.constant_values(1, "the step").item())
    window = call.get(2)
    size = samples if window is None else tensor_type(window).shape[0]
    length = size if call.get(3) is None else int(call.constant_values(3, "the length").item())
    size = size if window is not None else length
    signal = reshape(call[0], (batch, samples, *(parts or [1])))
    starts = np.arange((samples - length) // step + 1) * step
    frames = take_slices(signal, constant(starts[:, None] + np.arange(size), "int64"), 1)
    if window is not None:
        frames = elementwise("multiply", frames, reshape(window, (size, 1)))
    spectra = _transform(_widen(frames), length, inverse=False, onesided=bool(call.attributes["onesided"]))
    return cast(spectra, call.kind().dtype)


READERS: dict[str, Convert] = {
    "BitCast": _bit_cast,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DFT": _dft,
    "EyeLike": _eye_like,
    "Range": _range,
    "STFT": _stft,
}
