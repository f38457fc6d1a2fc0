"""What Triton's autotuner asks of an object that prunes its configurations, whatever the kernel computes."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence

from anatune.adapters.device import AUTO, GpuLike, find_gpu
from anatune.adapters.triton.checks import Config
from anatune.adapters.triton.operands import Argument, Arguments
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import NotJudgedWarning
from anatune.model.pruning.subset import kept_count

__all__ = ["KernelPruner"]

_KEYS = ("early_config_prune", "perf_model", "top_k")


class KernelPruner(Mapping[str, object]):
    """A mapping with ``early_config_prune``, ``perf_model`` and ``top_k``; each of them can be used on its own.

    Called by Triton, it raises nothing.

    Attributes
    ----------
    name : str
        Of the function that makes it.
    keep : int or float
        As asked.
    top_k : float
        What Triton then keeps of what is left: all, ``early_config_prune`` has counted.
    """

    name: str

    def __init__(self, hw: GpuLike, keep: float) -> None:
        kept_count(keep, 1)
        self.keep, self.top_k = keep, 1.0
        self._hw = hw
        self._spec: GpuSpec | None = None if str(hw) == AUTO else find_gpu(hw)
        self._said: set[str] = set()

    def __repr__(self) -> str:
        return f"{self.name}(hw={self._hw if self._spec is None else self._spec.name!r}, keep={self.keep})"

    def __getitem__(self, key: str) -> object:
        if key not in _KEYS:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __len__(self) -> int:
        return len(_KEYS)

    @property
    def hardware(self) -> GpuSpec:
        """The device; looked up when it is first needed.

        Raises
        ------
        DeviceError, UnknownNameError, SpecError, SpaceError
            As `find_gpu`.
        """
        if self._spec is None:
            self._spec = find_gpu(self._hw)
        return self._spec

    @abstractmethod
    def early_config_prune(
        self, configs: Sequence[Config], named_args: Arguments | None = None, **kwargs: Argument
    ) -> list[Config]:
        """Return the configurations to measure, best first; what Triton calls."""

    @abstractmethod
    def perf_model(self, **arguments: Argument) -> float:
        """Return the predicted seconds of one configuration, inf where it breaks a limit, 0 if it is not judged."""

    def _first(self, order: Sequence[int], judged: Container[int]) -> list[int]:
        """Return the places that are kept of those in predicted order: the caller's first one, where several are."""
        kept = list(order[: kept_count(self.keep, len(order))])
        if 0 in judged and 0 not in kept and len(kept) > 1:
            kept[-1] = 0
        return kept

    def _say(self, text: str) -> None:
        """Warn of what is not judged, each reason once."""
        if text not in self._said:
            self._said.add(text)
            warnings.warn(f"anatune, {self.name}: {text}", NotJudgedWarning, stacklevel=3)
