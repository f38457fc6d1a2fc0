"""What anatune is compared with on a GPU: cuBLAS and cuDNN through PyTorch, and an autotuned matmul in Triton.

Nothing here is needed without a GPU. PyTorch's convolution tries all of cuDNN's algorithms once (benchmark mode), in
two layouts; kernel names tell which of them compute something else than sums of products (Winograd, FFT).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu.timing import Method
from bench.layers import Convolution, Layer, Matmul

__all__ = ["Rivals", "is_same_arithmetic"]

_OTHER_ARITHMETIC = ("winograd", "fft")
_TORCH = {"float32": "float32", "tfloat32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


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
        self, layer: Layer, dtype: str, inputs: Mapping[str, NDArray[Any]], notes: list[str]
    ) -> dict[str, tuple[Method, Callable[[], NDArray[np.float64]]]]:
        """Return the methods by name, each with what reads its result.

        Parameters
        ----------
        layer, dtype
            What is computed; "tfloat32": PyTorch may use tf32.
        inputs
            anatune's operands by tensor, in the workload's order.
        notes
            What could not be tried is added.
        """
        torch = self._torch
        tf32 = dtype == "tfloat32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        kind = getattr(torch, _TORCH[dtype])
        first, second = (
            torch.from_numpy(np.asarray(a, dtype=np.float32)).to(self._device, kind) for a in inputs.values()
        )
        calls: dict[str, Callable[[], Any]] = {}
        if isinstance(layer, Matmul):
            out = torch.empty((layer.m, layer.n), dtype=kind, device=self._device)
            calls["torch:mm"] = lambda: torch.mm(first, second, out=out)
            if self._triton is not None:
                product, run = torch.empty_like(out), self._triton

                def triton_call() -> Any:
                    run(first, second, product, "tf32" if tf32 else "ieee")
                    return product

                calls["triton:matmul"] = triton_call
        else:
            calls.update(self._convolutions(layer, first, second))
        found = {}
        with torch.inference_mode():
            for name, call in calls.items():
                try:
                    for _ in range(3):  # algorithms are chosen, kernels compiled
                        call()
                    self._wait()
                except (RuntimeError, ValueError, AttributeError, TypeError) as error:
                    lines = str(error).splitlines() or [type(error).__name__]
                    notes.append(f"{layer.name} {name}: {lines[0][:200]}")
                    continue
                found[name] = (_queued(torch, call), _reader(torch, call))
        return found

    def _convolutions(self, layer: Convolution, data: Any, weight: Any) -> dict[str, Callable[[], Any]]:
        functional = self._torch.nn.functional
        calls: dict[str, Callable[[], Any]] = {}
        for name, layout in (("nchw", "contiguous_format"), ("nhwc", "channels_last")):
            memory = getattr(self._torch, layout)
            x, w = data.contiguous(memory_format=memory), weight.contiguous(memory_format=memory)
            calls[f"torch:{name}"] = lambda x=x, w=w: functional.conv2d(  # type: ignore[misc]
                x, w, stride=layer.stride, padding=layer.padding
            )
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


def _reader(torch: Any, call: Callable[[], Any]) -> Callable[[], NDArray[np.float64]]:
    def read() -> NDArray[np.float64]:
        with torch.inference_mode():
            found: NDArray[np.float64] = call().double().cpu().numpy()
        return found

    return read
