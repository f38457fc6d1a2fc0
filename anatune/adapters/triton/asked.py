"""What Triton's autotuner asks of an object that prunes its configurations, whatever the kernel computes.

A launch of a kernel says the blocks of its grid, and options that no model knows.
"""

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
from anatune.model.pruning.subset import kept_count
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import TILE_FIELDS


class Config(Protocol):
    """A ``triton.Config``, as far as it is read here."""

    kwargs: dict[str, Argument]
    num_warps: int
    num_stages: int


class Launch:
    """The grid of a call.

    Parameters
    ----------
    problem
        What the call computes.
    grid
        What the kernel is launched with: extents, or a function of all arguments; None where it is not known.
    num_sms : int
        Of the device.
    num_programs : int, optional
        What the kernel is told of them (an argument as NUM_SMS); a grid of so many blocks or a multiple is that of a
        persistent kernel, even where there are fewer tiles.
    """

    def __init__(self, problem: MatmulProblem, grid: Argument, num_sms: int, num_programs: int | None = None) -> None:
        self.problem, self.grid = problem, grid
        self.num_sms, self.num_programs = num_sms, num_programs

    def is_persistent(self, tile: list[int], arguments: Arguments, *, said: bool = False) -> bool:
        """Return whether blocks take several tiles of the result in turn, one block for each SM or a few.

        Parameters
        ----------
        tile : list of int
            Of one configuration, in the order of `TILE_FIELDS`.
        arguments
            Of the kernel, with the configuration's meta-parameters.
        said : bool
            Whether the caller says so; any grid will do then.

        Raises
        ------
        SpaceError
            There are more blocks than tiles (a batch in another dimension of the grid), or fewer and no multiple of
            the device's SMs.
        """
        if said or self.grid is None:
            return said
        try:
            found = self.grid(arguments) if callable(self.grid) else self.grid
            blocks = math.prod(int(extent) for extent in (found if isinstance(found, tuple | list) else (found,)))
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
            raise SpaceError("the grid has more blocks than one product has tiles: a batch, or a split that names omit")
        if blocks > 0 and blocks % self.num_sms == 0:
            return True
        raise SpaceError(
            f"the grid has fewer blocks than the product has tiles, and no multiple of {self.num_sms} SMs; if each "
            "takes several in turn, say names={'persistent': True}"
        )


def unmodelled_option(options: Arguments) -> str:
    """Return the option of a configuration (its ``all_kwargs()``) that the model does not know, "" without one."""
    if (options.get("num_ctas") or 1) > 1:
        return "num_ctas"
    return next((name for name in ("maxnreg", "ir_override") if options.get(name) is not None), "")


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
