"""The base class of all pruners for Triton's autotuner, and the grid of a kernel's launch."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Protocol

from anatune.adapters.device import AUTO, GpuLike, find_gpu
from anatune.adapters.triton.operands import Argument, Arguments
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import NotJudgedWarning, SpaceError
from anatune.model.pruning.subset import count_kept
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import TILE_FIELDS


class Config(Protocol):
    """The attributes of ``triton.Config`` that are read here."""

    kwargs: dict[str, Argument]
    num_warps: int
    num_stages: int


class LaunchGrid:
    """The grid of a kernel's launch.

    Parameters
    ----------
    problem
        The product that the call computes.
    grid
        The grid: extents, or a function of all arguments; None if it is not known.
    num_sms : int
        The number of SMs of the device.
    num_programs : int, optional
        The number of persistent blocks that the kernel gets as an argument (NUM_SMS). A grid of so many blocks or a
        multiple belongs to a persistent kernel, even if there are fewer tiles.
    """

    def __init__(self, problem: MatmulProblem, grid: Argument, num_sms: int, num_programs: int | None = None) -> None:
        self.problem, self.grid = problem, grid
        self.num_sms, self.num_programs = num_sms, num_programs

    def is_persistent(self, tile: list[int], arguments: Arguments, *, is_declared: bool = False) -> bool:
        """Return whether the kernel is persistent: one or a few blocks for each SM compute several tiles in turn.

        Parameters
        ----------
        tile : list of int
            The tile of one configuration, in the order of `TILE_FIELDS`.
        arguments
            The arguments of the kernel and the meta-parameters of the configuration.
        is_declared : bool
            Whether the caller declares the kernel persistent; then every grid is accepted.

        Raises
        ------
        SpaceError
            There are more blocks than tiles (a batch in another dimension of the grid), or fewer blocks, whose number
            is not a multiple of the device's SMs.
        """
        if is_declared or self.grid is None:
            return is_declared
        try:
            extents = self.grid(arguments) if callable(self.grid) else self.grid
            blocks = math.prod(int(extent) for extent in (extents if isinstance(extents, tuple | list) else (extents,)))
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise SpaceError(f"the grid cannot be computed ({type(error).__name__}: {error!s:.60})") from None
        size = dict(zip(TILE_FIELDS, tile, strict=False))
        rows, columns = -(-self.problem.m // size["block_m"]), -(-self.problem.n // size["block_n"])
        tiles = rows * columns * size["split_k"]
        if blocks == tiles:
            return False
        if blocks > 0 and self.num_programs is not None and blocks % self.num_programs == 0:
            return True
        if blocks > tiles:
            raise SpaceError("the grid has more blocks than the product has tiles: a batch, or names lacks split_k")
        if blocks > 0 and blocks % self.num_sms == 0:
            return True
        raise SpaceError(
            f"the grid has fewer blocks than the product has tiles, and their number is not a multiple of the device's "
            f"{self.num_sms} SMs; if each block computes several tiles, pass names={{'persistent': True}}"
        )


def unmodelled_option(options: Arguments) -> str:
    """Return the option of a configuration (``all_kwargs()``) that the model does not know, or an empty text."""
    if (options.get("num_ctas") or 1) > 1:
        return "num_ctas"
    return next((name for name in ("maxnreg", "ir_override") if options.get(name) is not None), "")


_KEYS = ("early_config_prune", "perf_model", "top_k")


class KernelPruner(Mapping[str, object]):
    """A mapping with ``early_config_prune``, ``perf_model`` and ``top_k``; each can also be used alone.

    It never raises an error when Triton calls it.

    Attributes
    ----------
    name : str
        The name of the function that returns the pruner.
    keep : int or float
        The argument.
    top_k : float
        The share that Triton keeps afterwards: 1.0, because ``early_config_prune`` already selects.
    """

    name: str

    def __init__(self, hw: GpuLike, keep: float) -> None:
        count_kept(keep, 1)
        self.keep, self.top_k = keep, 1.0
        self._hw = hw
        self._spec: GpuSpec | None = None if str(hw) == AUTO else find_gpu(hw)
        self._warned: set[str] = set()

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
        """The device; it is looked up when it is first needed.

        Raises
        ------
        DeviceError, UnknownNameError, SpecError, SpaceError
            The device cannot be found, as in `find_gpu`.
        """
        if self._spec is None:
            self._spec = find_gpu(self._hw)
        return self._spec

    @abstractmethod
    def early_config_prune(
        self, configs: Sequence[Config], named_args: Arguments | None = None, **kwargs: Argument
    ) -> list[Config]:
        """Return the configurations to measure, best first; Triton calls this."""

    @abstractmethod
    def perf_model(self, **arguments: Argument) -> float:
        """Return the predicted seconds of one configuration; inf if it breaks a limit, 0 if it cannot be judged."""

    def _select_first(self, order: Sequence[int], judged: Container[int]) -> list[int]:
        """Return the indices to keep, given in predicted order; index 0 is kept if several are."""
        kept = list(order[: count_kept(self.keep, len(order))])
        if 0 in judged and 0 not in kept and len(kept) > 1:
            kept[-1] = 0
        return kept

    def _warn_once(self, text: str) -> None:
        """Warn about configurations that cannot be judged, once for each text."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"anatune, {self.name}: {text}", NotJudgedWarning, stacklevel=3)
