"""Samples of what a PyTorch program computes: each of its operators runs in float64, with noise of rounding."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from bench.fuzz.oracle import EXACT, INNER, MOVE, OUTER, Noise, rounded, worst_error
from bench.fuzz.program import Array, words

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Sampling", "UndefinedError", "as_array", "as_tensor", "doubles", "outputs_of"]

_MOVES = words(
    """_unsafe_view _reshape_copy _reshape_alias clone cat stack gather index index_select slice select neg abs
    where _to_copy constant_pad_nd flip roll repeat embedding copy fill zero masked_fill copysign
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d tril triu im2col diagonal
    _upsample_nearest_exact1d _upsample_nearest_exact2d unfold pixel_shuffle pixel_unshuffle channel_shuffle
    zeros ones full empty empty_like zeros_like ones_like full_like new_zeros new_ones new_full arange eye
    scalar_tensor lift_fresh scatter select_scatter slice_scatter diagonal_scatter masked_scatter
    take_along_dim repeat_interleave empty_strided new_empty _unsafe_index empty_permuted complex
    narrow_copy permute_copy view_copy new_empty_strided signbit set"""
)
_EXACTS = words(
    """relu clamp clamp_min clamp_max maximum minimum max min amax amin argmax argmin sort topk kthvalue median ceil
    floor round trunc sign sgn eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and
    bitwise_or bitwise_xor bitwise_not isnan isinf isfinite any all max_pool2d_with_indices
    max_pool3d_with_indices fmax fmin frac adaptive_max_pool2d adaptive_max_pool3d hardtanh threshold
    searchsorted bucketize cummax cummin argsort nan_to_num aminmax max_pool1d mode nonzero masked_select
    heaviside __and__ __or__ __xor__ __lshift__ __rshift__ relu6 aminmax bitwise_left_shift
    bitwise_right_shift ldexp"""
)
_OUTERS = words(
    """add sub rsub mul div reciprocal exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sin cos tan asin acos atan sinh
    cosh tanh asinh acosh atanh erf erfc sigmoid silu elu celu selu leaky_relu softplus hardsigmoid hardswish
    log_sigmoid mish pow square hypot atan2 hardshrink softshrink addcmul addcdiv lerp xlogy prelu
    _prelu_kernel sinc logaddexp log_sigmoid_forward deg2rad rad2deg tanhshrink"""
)
_ROUNDING = {**dict.fromkeys(_MOVES, MOVE), **dict.fromkeys(_EXACTS, EXACT), **dict.fromkeys(_OUTERS, OUTER)}
_VIEWS_IN_PLACE = ("squeeze", "unsqueeze", "transpose", "t", "as_strided", "swapaxes", "detach", "resize")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
"""Operators beside which a number is rounded to the tensor's dtype, not to float32."""
_WHOLE_QUOTIENTS = ("remainder", "fmod", "floor_divide", "div")
"""Operators of a quotient that becomes whole; of "div" only calls with a `rounding_mode` combine operands."""
_OF_FINITE = ("upsample_", "_upsample_", "grid_sampler", "var_mean", "std_mean")
"""Operators of finite numbers, by how their names begin."""
_OF_SQUARES = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm", "_fused_rms_norm")
"""Norms that divide by a sum of squares in float32, by how their names begin."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class UndefinedError(Exception):
    """PyTorch says nothing about a result: an integer of NaN, or of a number that is too large."""


def as_tensor(array: Array) -> torch.Tensor:
    """Return a tensor with the numbers of an array, bfloat16 included, in memory of its own."""
    if array.dtype.name == "bfloat16":
        return (
            torch.from_numpy(np.ascontiguousarray(array).view(np.int16).copy())
            .view(torch.bfloat16)
            .reshape(array.shape)
        )
    return torch.from_numpy(np.array(array, order="C"))


def as_array(tensor: Any) -> Array:
    """Return the numbers of a tensor, or of a Python number, as an array."""
    if not isinstance(tensor, torch.Tensor):
        return np.asarray(tensor)
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16).reshape(tuple(tensor.shape))
    return tensor.contiguous().numpy()


def doubles(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64 where it is of floats."""
    return tensor.double() if tensor.is_floating_point() else tensor


class Sampling(TorchDispatchMode):
    """Runs operators in float64 with the noise of a sample.

    Parameters
    ----------
    noise : Noise
    dtype : str
        What all floats of the program are.

    Attributes
    ----------
    is_exact, has_signs : bool
        Whether no operator so far rounds; whether all of them are moves.
    """

    def __init__(self, noise: Noise, dtype: str) -> None:
        super().__init__()
        self._noise, self._dtype = noise, dtype
        self.is_exact = self.has_signs = True

    def __enter__(self) -> Self:
        """Begin; attention is products and a softmax: PyTorch's kernel for CPUs takes scores of NaN for masked ones."""
        self._attention = sdpa_kernel(SDPBackend.MATH)
        self._attention.__enter__()
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *raised: Any) -> None:
        """End."""
        super().__exit__(*raised)
        self._attention.__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        kwargs = {name: torch.float64 if value in _FLOATS else value for name, value in (kwargs or {}).items()}
        schema = func._schema
        name = schema.name.partition("::")[2].removesuffix("_") if "::__" not in schema.name else schema.name[6:]
        is_compared = name in _COMPARISONS and getattr(args[0], "dtype", None) == torch.float64
        args = tuple(self._scalar(one, self._dtype if is_compared else "float32") for one in args)
        if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
            return func(*args, **kwargs)  # a view
        how = _ROUNDING.get(name, INNER)
        if (name == "div" and kwargs.get("rounding_mode")) or kwargs.get("accumulate") or kwargs.get("reduce"):
            how = INNER
        if name == "index_put":
            how = INNER if (len(args) > 3 and args[3]) else MOVE
        _check_conversion(name, args, kwargs)
        if name.startswith(_OF_FINITE):
            _check_finite(args)
        if name.startswith("grid_sampler"):
            _check_places(args[0], args[1], self._dtype)
        if name in _VIEWS_IN_PLACE:
            return func(*args, **kwargs)
        errors: list[float] = []
        natives: list[Any] = []
        is_over = name.startswith(_OF_SQUARES) and self._dtype != "float64" and _has_large_squares(args[0])
        if how == INNER and not schema.is_mutable and self._noise.sample > 1:
            errors, natives = self._compute_natively(func, args, kwargs)
            if name in _WHOLE_QUOTIENTS:
                signed = zip(args[:2], (1.0, -1.0), strict=True)
                args = (*(self._operand(one, sign) for one, sign in signed), *args[2:])
            else:
                args, kwargs = tree_map(self._operand, (args, kwargs))
        found = _gelu(*args, **kwargs) if name == "gelu" else func(*args, **kwargs)
        tensors = found if isinstance(found, (tuple, list)) else (found,)
        for place, one in enumerate(tensors):
            if isinstance(one, torch.Tensor) and one.dtype == torch.float64:
                self.is_exact &= how in (MOVE, EXACT)
                self.has_signs &= how == MOVE
                if how != MOVE and one.numel() and not (0 in one.stride() and max(one.shape) > 1):
                    wide = self._noise.inner(one.numpy(), errors[place] if errors else 0.0, self._dtype)
                    wide = self._noise.overflow(wide, natives[place], is_of_squares=is_over) if natives else wide
                    one.copy_(torch.from_numpy(np.asarray(self._noise.result(wide, self._dtype, how))))
        return found

    def _compute_natively(self, func: Any, args: Any, kwargs: Any) -> tuple[list[float], list[Any]]:
        """Return how far each result is off at most where PyTorch computes in the program's dtype, and the results."""
        narrow = getattr(torch, self._dtype)

        def native(value: Any) -> Any:
            if value is torch.float64:
                return narrow
            is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float64
            return value.to(narrow) if is_wide else value

        try:
            computed = func(*tree_map(native, args), **tree_map(native, kwargs))
        except (RuntimeError, NotImplementedError):
            return [], []
        wide = func(*args, **kwargs)
        natives, wides = (
            [as_array(one) if isinstance(one, torch.Tensor) else np.zeros(()) for one in results]
            for results in (one if isinstance(one, (tuple, list)) else (one,) for one in (computed, wide))
        )
        return [worst_error(one, other) for one, other in zip(natives, wides, strict=True)], natives

    def _scalar(self, value: Any, dtype: str) -> Any:
        """Return an argument in float64; PyTorch rounds a number beside tensors of fewer bits to a dtype."""
        if isinstance(value, torch.dtype) and value in _FLOATS:
            return torch.float64
        is_rounded = isinstance(value, float) and self._noise.sample == 0 and self._dtype != "float64"
        return float(rounded(np.float64(value), dtype)) if is_rounded else value

    def _operand(self, value: Any, sign: float = 0.0) -> Any:
        if self._noise.sample <= 1 or not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
            return value
        numbers = value.numpy()
        noisy = self._noise.dividend(numbers, self._dtype, sign) if sign else self._noise.operand(numbers, self._dtype)
        found = torch.empty_like(value)
        found.copy_(torch.from_numpy(np.asarray(noisy)))
        return found


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return GELU in float64; PyTorch's ``x * (1 + erf(x / sqrt(2))) / 2`` is 0 below -8.3, far above denormals."""
    if approximate == "tanh":
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    return x * torch.erfc(-x / math.sqrt(2)) / 2


def _check_finite(args: Sequence[Any]) -> None:
    """Raise an `UndefinedError` where an operand is no finite number: whether a weight of 0 hides it is open."""
    for one in args:
        if isinstance(one, torch.Tensor) and one.is_floating_point() and not bool(torch.isfinite(one).all()):
            raise UndefinedError


def _check_places(image: torch.Tensor, grid: torch.Tensor, dtype: str) -> None:
    """Raise an `UndefinedError` where places leave the range in which PyTorch computes them.

    In 16 bits its kernel makes them 32-bit integers and reads the first element instead of padding; in float32 a
    product with the size overflows.
    """
    limits = {"float32": torch.finfo(torch.float32).max, "float64": math.inf}
    if float(grid.abs().max()) * max(image.shape[2:]) >= limits.get(dtype, 2.0**31):
        raise UndefinedError


def _has_large_squares(value: torch.Tensor) -> bool:
    """Return whether a sum of squares of a tensor's numbers overflows float32."""
    return float(value.square().sum()) >= torch.finfo(torch.float32).max


def _check_conversion(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise an `UndefinedError` where floats that are none become integers."""
    dtype = kwargs.get("dtype")
    if name == "_to_copy" and dtype in _INTEGERS and args[0].is_floating_point():
        limits = torch.iinfo(dtype)
        value = args[0]
        if not bool((torch.isfinite(value) & (value > limits.min - 1) & (value < float(limits.max))).all()):
            raise UndefinedError


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new floats of a dtype meanwhile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def outputs_of(found: Any) -> list[Any]:
    """Return the outputs of a module as a list."""
    return list(found) if isinstance(found, (tuple, list)) else [found]
