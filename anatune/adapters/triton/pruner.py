"""The object that Triton's autotuner asks which configurations deserve to be measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anatune.adapters.device import AUTO, GpuLike
from anatune.adapters.triton.arguments import ArgumentNames, DtypeLike, KernelNames
from anatune.adapters.triton.asked import Config, KernelPruner, unmodelled_option
from anatune.adapters.triton.calls import Judged, Problem, ProductReading, Reading, judged, scored
from anatune.adapters.triton.operands import Argument, Arguments
from anatune.adapters.triton.tiles import bound_by
from anatune.errors import AnatuneError, SpaceError
from anatune.model.pruning.subset import Verdict
from anatune.templates.triton.tiles import Tiles

_USUAL = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4, 5, 6))
"""Block sizes, warps and stages that most configurations have."""


def matmul_pruner(
    hw: GpuLike = AUTO,
    keep: float = 8,
    names: KernelNames | None = None,
    dtype: DtypeLike | None = None,
) -> MatmulPruner:
    """Return what ``triton.autotune(prune_configs_by=...)`` takes, for a kernel that multiplies matrices.

    Parameters
    ----------
    hw
        A device's name, a TOML file or a spec; "auto": at the first call, what the environment variable ANATUNE_HW
        names, else the present device.
    keep : int or float
        Configurations to measure (a count), or a share of the legal ones. The caller's first configuration is one of
        them whatever is predicted for it; only 1 keeps the best predicted and nothing else.
    names : mapping, optional
        What the kernel calls things: "block_m", "block_n", "block_k", "split_k", "group_m" (meta-parameters), "m", "n",
        "k" (arguments, or functions of all arguments), "a", "b", "c" (tensors or descriptors; with ".T" behind it one
        that is stored with its second index first), "descriptors", "persistent" (meta-parameters, or True: the kernel
        always makes descriptors, its blocks take tiles in turn), "num_sms" (of a persistent grid). Usual spellings are
        recognised without it (BLOCK_M, BLOCK_SIZE_M, ...; a_ptr, a_desc, ...; USE_TMA; NUM_SMS).
    dtype : str or pair of str, optional
        Of the operands: "float16", "bfloat16", "int8", "fp8", "tf32", or "float32" where ``tl.dot`` is told to keep all
        bits; a pair where the right ones have 8 bits and the kernel converts them, as ("bfloat16", "int8"). Left out:
        those of the operands, float32 as "tf32", which is what ``tl.dot`` makes of it.

    Raises
    ------
    SpaceError
        `keep`, `names` or `dtype` is wrong.
    UnknownNameError, SpecError
        The device that is named is unknown; "auto" is looked up at the first call, where nothing is raised.

    Warns
    -----
    NotJudgedWarning
        At a call, once for each reason: something is beyond the model (a batch, other types, more blocks than tiles,
        a product of nothing, an unknown device); what it is about stays in the list.
    """
    return MatmulPruner(hw, keep, names, dtype)


@dataclass
class _Call:
    """What the last call was about: places of its configurations.

    `reason` says why it could not be judged at all; `unjudged`, by place, why a configuration could not.
    """

    configs: list[Config]
    kept: set[int]
    problem: Problem | None = None
    tiles: Mapping[int, list[int]] = field(default_factory=dict)
    unjudged: Mapping[int, str] = field(default_factory=dict)
    reason: str = ""


class MatmulPruner(KernelPruner):
    """Judges configurations of a kernel that multiplies matrices.

    Guarantees: deterministic; the configurations kept are the first of the predicted order, the caller's first (where
    more than one is kept), and those that cannot be judged. Called by Triton, it raises nothing. One object may serve
    many shapes; `explain` is about the last one unless told otherwise.
    """

    name = "matmul_pruner"

    def __init__(
        self,
        hw: GpuLike = AUTO,
        keep: float = 8,
        names: KernelNames | None = None,
        dtype: DtypeLike | None = None,
    ) -> None:
        super().__init__(hw, keep)
        self._arguments = ArgumentNames(names, dtype)
        self._timed: Problem | None = None
        self._times: dict[tuple[int, ...], float] = {}
        self._call: _Call | None = None

    @property
    def product(self) -> Problem | None:
        """The product that the last call was about; None before the first one, and where it could not be judged."""
        return None if self._call is None else self._call.problem

    def early_config_prune(
        self, configs: Sequence[Config], named_args: Arguments | None = None, **kwargs: Argument
    ) -> list[Config]:
        """Return the configurations to measure, best first; what Triton calls.

        What cannot be judged stays: a configuration with options that the model does not know, behind the others; the
        whole list, where the call is no product that the model knows, the device is unknown, or nothing is legal. A
        `NotJudgedWarning` says so, each reason once.

        Parameters
        ----------
        configs : sequence of triton.Config
            The first one is the caller's default and stays where more than one does.
        named_args, kwargs
            Arguments of the kernel by name, and the grid.
        """
        configs = list(configs)
        arguments = {**(named_args or {}), **kwargs}
        self._call = _Call(configs, set(range(len(configs))))
        if not configs:
            return []
        try:
            found = self._judged(configs, arguments)
            problem, tiles, unjudged = found.problem, found.rows, found.unjudged
            order = self._order(problem, tiles)
        except AnatuneError as error:
            self._call.reason = str(error)
            self._say(f"{error}: all {len(configs)} configurations stay")
            return configs
        if not order:
            self._call.reason = f"no configuration keeps to the limits of {self.hardware.name} for {problem.describe()}"
            self._say(f"no configuration keeps to the limits of {self.hardware.name}: all {len(configs)} stay")
            return configs
        kept = self._first(order, tiles)
        for reason in dict.fromkeys(unjudged.values()):
            self._say(f"{reason}: such configurations stay, beside the {len(kept)} best of the others")
        kept += list(unjudged)
        self._call = _Call(configs, set(kept), problem, tiles, unjudged)
        return [configs[place] for place in kept]

    def perf_model(self, **arguments: Argument) -> float:
        """Return the predicted seconds of one configuration, infinite where it breaks a limit; what Triton calls.

        0 where it cannot be judged (a `NotJudgedWarning` says why, once): the list then keeps its order.

        Parameters
        ----------
        arguments
            Arguments of the kernel, meta-parameters, ``num_warps`` and ``num_stages``, by name.
        """
        try:
            if option := unmodelled_option(arguments):
                raise SpaceError(f"{option} is not modelled")
            reading = self._read(arguments)
            tile = self._arguments.tile(arguments, arguments.get("num_warps", 4), arguments.get("num_stages", 3))
            if self._timed != reading.problem:
                self._timed, self._times = reading.problem, {}
            return self._seconds(reading.problem, tuple(reading.row(tile, {})))
        except AnatuneError as error:
            self._say(f"{error}: perf_model leaves the order as it is")
            return 0.0

    def _read(self, arguments: Arguments) -> Reading:
        """Return what a call says; raise SpaceError where it is no product that the model knows."""
        return ProductReading(self._arguments, arguments, self.hardware.compute.num_sms)

    def _judged(self, configs: Sequence[Config], arguments: Arguments) -> Judged:
        return judged(self._arguments, configs, arguments, lambda: self._read(arguments))

    def _seconds(self, problem: Problem, tile: tuple[int, ...]) -> float:
        if tile not in self._times:  # Triton asks one by one; thousands at once cost no more than ten
            usual = [] if self._times else itertools.product(*_USUAL, *([value] for value in tile[len(_USUAL) :]))
            rows = [tile, *usual]
            scores, _ = scored(problem, Tiles.of(rows), self.hardware)
            seconds = np.where(scores.resources.rule == 0, scores.time_s, np.inf)
            self._times |= dict(zip(rows, seconds.tolist(), strict=True))
        return self._times[tile]

    def explain(self, config: Config, **arguments: Argument) -> Verdict:
        """Return why a configuration is measured or not.

        Parameters
        ----------
        config : triton.Config
        arguments
            Of the kernel, by name; left out: those of the last call.

        Raises
        ------
        SpaceError
            Nothing was pruned yet and there are no arguments, or the configuration has no tile sizes.
        """
        if arguments:
            found = self._judged([config], arguments)
            call = _Call([config], {0}, found.problem, found.rows, found.unjudged)
        elif self._call is None:
            raise SpaceError("explain: nothing was pruned yet; call the kernel first, or pass its arguments by name")
        else:
            call = self._call
        place = next((at for at, known in enumerate(call.configs) if known is config or _is_same(known, config)), None)
        if call.problem is None or (place is not None and place in call.unjudged):
            reason = call.reason if place is None else call.unjudged.get(place, call.reason)
            unknown = dict.fromkeys(("time_s", "best_s", "cut_s", "factor"), math.nan)
            text = f"left as it is: {reason}"
            return Verdict(place is not None, None, "", None, None, **unknown, bound_by="", text=text)
        tiles = dict(call.tiles)
        if place is None:
            place = len(call.configs)
            tile = self._arguments.tile(config.kwargs, config.num_warps, config.num_stages)
            tiles[place] = [*tile, *next(iter(tiles.values()))[len(tile) :]]  # passed and launched as the others
        return self._verdict(call.problem, tiles, place, call.kept)

    def _order(self, problem: Problem, tiles: Mapping[int, list[int]]) -> list[int]:
        """Return the places of legal tiles, best first."""
        places = list(tiles)
        return [places[at] for at in scored(problem, Tiles.of(list(tiles.values())), self.hardware)[1].tolist()]

    def _verdict(self, problem: Problem, tiles: Mapping[int, list[int]], place: int, kept: set[int]) -> Verdict:
        places = list(tiles)
        scores, found = scored(problem, Tiles.of(list(tiles.values())), self.hardware)
        seconds = dict(zip(places, scores.time_s.tolist(), strict=True))
        row = places.index(place)
        order = [places[at] for at in found.tolist()]
        known = kept & set(places)
        first = order[: len(known)]
        chosen = [at for at in order if at in known and (at != 0 or at in first)]  # the first one may be there as such
        time_s = seconds[place]
        best_s = seconds[order[0]] if order else time_s
        cut_s = seconds[chosen[-1]] if chosen else time_s
        part = bound_by(scores, np.array([row]))[0]
        is_kept, rule = place in kept, int(scores.resources.rule[row])
        rank = order.index(place) + 1 if place in order else None
        where = f"{problem.describe()} on {self.hardware.name}"
        needed = limit = None
        name = ""
        if rule:
            broken = scores.resources.rules[rule - 1]
            needed, limit, name = float(scores.resources.needed[row]), broken.limit, broken.id
            reason = f"{broken.id}: {broken.text}: {needed:.10g}" + (f", limit {limit:.10g}" if limit else "")
        else:
            reason = (
                f"predicted {time_s * 1e6:.4g} us, {time_s / best_s:.3g} times the best, place {rank} of {len(order)}, "
                f"bound by {part}"
            )
        if is_kept:
            as_such = place == 0 and place not in first
            text = f"kept for {where}{' (the first one listed always is)' if as_such else ''}: {reason}"
        else:
            slower = "" if rule else f"; {time_s / cut_s:.3g} times the slowest one kept by prediction"
            text = f"left out for {where}: {reason}{slower}"
        return Verdict(is_kept, rank, name, needed, limit, time_s, best_s, cut_s, time_s / cut_s, part, text)


def _is_same(one: Config, other: Config) -> bool:
    keys = ("kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
    return all(getattr(one, key, None) == getattr(other, key, None) for key in keys)
