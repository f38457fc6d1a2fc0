"""What anatune is compared with on a GPU: cuBLAS and cuDNN through PyTorch, and an autotuned matmul in Triton.

Nothing here is needed without a GPU. PyTorch's convolution tries all of cuDNN's algorithms once (benchmark mode), in
two layouts; kernel names tell which of them compute something else than sums of products (Winograd, FFT).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.kernels import EPSILON
from bench.gpu.timing import Method
from bench.layers import Convolution, Layer, Matmul, Words

__all__ = ["Rivals", "is_same_arithmetic"]

_OTHER_ARITHMETIC = ("winograd", "fft")
_RAW = {"bfloat16": "int16", "float8_e4m3fn": "uint8"}
"""Types that PyTorch does not take from NumPy: what their bytes are taken as."""
_TRITON = ("float32", "float16", "bfloat16", "tfloat32")
"""What the plain Triton matmul takes."""


def is_same_arithmetic(kernels: list[str]) -> bool:
    """Whether kernels of these names sum products as the definition says."""
    return not any(word in name.lower() for name in kernels for word in _OTHER_ARITHMETIC)


class Rivals:
    """The methods for a layer; tensors stay alive with the methods.

    Parameters
    ----------
    device : str
        PyTorch's word for it; "cpu" only to see that the methods compute what they should.

    Raises
    ------
    ImportError
        PyTorch is missing; without Triton its part is left out.
    """

    def __init__(self, device: str = "cuda") -> None:
        import torch

        self._torch, self._device = torch, device
        torch.backends.cudnn.benchmark = True
        try:
            from bench.gpu.triton_matmul import matmul

            self._triton: Callable[..., None] | None = matmul
        except ImportError:
            self._triton = None

    @property
    def versions(self) -> dict[str, str]:
        """Of PyTorch, CUDA and cuDNN there, and Triton."""
        torch = self._torch
        found = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
        found["cudnn"] = str(torch.backends.cudnn.version())
        if self._triton is not None:
            import triton

            found["triton"] = str(triton.__version__)
        return found

    def methods(
        self,
        layer: Layer,
        dtype: str,
        inputs: Mapping[str, NDArray[Any]],
        notes: list[str],
        rows: NDArray[np.int64] | None = None,
    ) -> dict[str, tuple[Method, Callable[[], NDArray[np.float64]]]]:
        """Return the methods by name, each with what reads its result.

        Parameters
        ----------
        layer, dtype
            What is computed, as `layers.workload_of` lays it out; "tfloat32": PyTorch may use tf32.
        inputs
            anatune's operands by tensor, in the workload's order.
        notes
            What could not be tried is added.
        rows
            Of the result that are read; all by default.
        """
        torch = self._torch
        if isinstance(layer, Words):
            return self._tried(layer, dtype, self._kernels_of(layer, inputs), notes, rows)
        tf32 = dtype == "tfloat32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        try:
            first, second = (self._tensor(array) for array in inputs.values())
        except RuntimeError as error:
            notes.append(f"{layer.name} {dtype}: PyTorch has no room for the operands: {_first_line(error)}")
            return {}
        if isinstance(layer, Matmul):
            calls = self._products(layer, dtype, first, second)
        else:
            calls = self._convolutions(layer, dtype, first, second)
        return self._tried(layer, dtype, calls, notes, rows)

    def _tried(
        self,
        layer: Layer,
        dtype: str,
        calls: Mapping[str, Callable[[], Any]],
        notes: list[str],
        rows: NDArray[np.int64] | None,
    ) -> dict[str, tuple[Method, Callable[[], NDArray[np.float64]]]]:
        """Run each call a few times; what fails is a note."""
        torch, found = self._torch, {}
        with torch.inference_mode():
            for name, call in calls.items():
                try:
                    for _ in range(3):  # algorithms are chosen, kernels compiled
                        call()
                    self._wait()
                except (RuntimeError, ValueError, AttributeError, TypeError) as error:
                    notes.append(f"{layer.name} {dtype} {name}: {_first_line(error)}")
                    continue
                found[name] = (_queued(torch, call), _reader(torch, call, rows))
        return found

    def _tensor(self, array: NDArray[Any]) -> Any:
        """Return an array on the device, bit by bit."""
        name = array.dtype.name
        raw = self._torch.from_numpy(array.view(_RAW.get(name, name)))
        return raw.to(self._device).view(getattr(self._torch, name))

    def _products(self, layer: Matmul, dtype: str, first: Any, second: Any) -> dict[str, Callable[[], Any]]:
        """Return the products; what lies as [n, k] is transposed by its strides alone."""
        torch = self._torch
        if tuple(second.shape) != (layer.k, layer.n) or dtype in ("int8", "float8_e4m3fn"):
            second = second.t()
        if dtype == "int8":
            return {"torch:int_mm": lambda: torch._int_mm(first, second)}
        if dtype == "float8_e4m3fn":
            one = torch.ones((), dtype=torch.float32, device=self._device)

            def scaled(fast: bool) -> Any:
                return torch._scaled_mm(first, second, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)

            return {"torch:scaled_mm": lambda: scaled(False), "torch:scaled_mm_fast": lambda: scaled(True)}
        out = torch.empty((layer.m, layer.n), dtype=first.dtype, device=self._device)
        calls: dict[str, Callable[[], Any]] = {"torch:mm": lambda: torch.mm(first, second, out=out)}
        if self._triton is not None and dtype in _TRITON:
            product, run, right = torch.empty_like(out), self._triton, second.contiguous()

            def triton_call() -> Any:
                run(first, right, product, "tf32" if dtype == "tfloat32" else "ieee")
                return product

            calls["triton:matmul"] = triton_call
        return calls

    def _kernels_of(self, layer: Words, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Callable[[], Any]]:
        """Return PyTorch's attention, softmax and norms; nothing for other workloads."""
        torch, workload = self._torch, layer.workload()
        functional, name = torch.nn.functional, workload.operator
        if name not in ("attention", "softmax", "rms_norm", "layer_norm") or "block_table" in inputs:
            return {}
        operands = [self._tensor(array) for array in inputs.values()]
        if name == "softmax":
            return {"torch:softmax": lambda: torch.softmax(operands[0], -1)}
        if name != "attention":
            norm, rest = getattr(functional, name), operands[1:]
            return {f"torch:{name}": lambda: norm(operands[0], operands[0].shape[-1:], *rest, eps=EPSILON)}
        causal = bool(workload.attribute["causal"])
        return {
            "torch:attention": lambda: functional.scaled_dot_product_attention(
                *operands, is_causal=causal, enable_gqa=True
            )
        }

    def _convolutions(self, layer: Convolution, dtype: str, data: Any, weight: Any) -> dict[str, Callable[[], Any]]:
        """Return cuDNN's in two layouts; results are brought into the layout of the workload when they are read."""
        functional = self._torch.nn.functional
        if last := dtype != "float32":  # NHWC, weights HWIO
            data, weight = data.permute(0, 3, 1, 2), weight.permute(3, 2, 0, 1)
        calls: dict[str, Callable[[], Any]] = {}
        for name, layout in (("nchw", "contiguous_format"), ("nhwc", "channels_last")):
            memory = getattr(self._torch, layout)
            x, w = data.contiguous(memory_format=memory), weight.contiguous(memory_format=memory)

            def call(x: Any = x, w: Any = w) -> Any:
                found = functional.conv2d(x, w, stride=layer.stride, padding=layer.padding)
                return found.permute(0, 2, 3, 1) if last else found  # by strides alone

            calls[f"torch:{name}"] = call
        return calls

    def _wait(self) -> None:
        if self._device != "cpu":
            self._torch.cuda.synchronize()

    def kernels(self, method: Method) -> list[str]:
        """Return the kernels that a method launches, by PyTorch's profiler; empty where it does not work."""
        torch = self._torch
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                method()
                self._wait()
            return sorted({event.key for event in profile.key_averages() if not event.key.startswith("cuda")})
        except (RuntimeError, AttributeError):
            return []


def _queued(torch: Any, call: Callable[[], Any]) -> Method:
    def run() -> None:
        with torch.inference_mode():
            call()

    return run


def _reader(torch: Any, call: Callable[[], Any], rows: NDArray[np.int64] | None) -> Callable[[], NDArray[np.float64]]:
    def read() -> NDArray[np.float64]:
        with torch.inference_mode():
            result = call()
            chosen = result if rows is None else result[torch.from_numpy(rows).to(result.device)]
            found: NDArray[np.float64] = chosen.double().cpu().numpy()
        return found

    return read


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]
