"""The pruner for configurations of kernels that multiply two matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anatune.adapters.device import AUTO, GpuLike
from anatune.adapters.triton.arguments import ArgumentNames, DtypeLike, KernelNames
from anatune.adapters.triton.asked import Config, KernelPruner, unmodelled_option
from anatune.adapters.triton.calls import CallReading, JudgedConfigs, Problem, ProductReading, read_tiles, score_problem
from anatune.adapters.triton.operands import Argument, Arguments
from anatune.adapters.triton.tiles import binding_resources
from anatune.errors import AnatuneError, SpaceError
from anatune.model.pruning.subset import Verdict, against_best
from anatune.templates.triton.tiles import Tiles

_USUAL = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4, 5, 6))
"""The block sizes, warps and stages that most configurations have."""


def matmul_pruner(
    hw: GpuLike = AUTO, keep: float = 8, names: KernelNames | None = None, dtype: DtypeLike | None = None
) -> MatmulPruner:
    """Return a pruner for ``triton.autotune(prune_configs_by=...)`` and a kernel that multiplies matrices.

    Parameters
    ----------
    hw
        The name, TOML file or spec of a device. "auto" means the device that the environment variable ANATUNE_HW names
        at the first call, otherwise the GPU of this machine.
    keep : int or float
        The number of configurations to measure, or a share of the legal ones. The caller's first configuration is
        always one of them, unless `keep` is 1.
    names : mapping, optional
        The kernel's names of

        - "block_m", "block_n", "block_k", "split_k", "group_m": meta-parameters;
        - "m", "n", "k": arguments, or functions of all arguments;
        - "a", "b", "c": tensors or tensor descriptors; append ".T" to the name of an operand that is stored transposed;
        - "descriptors", "persistent": meta-parameters, or True if the kernel always makes descriptors, or always has a
          persistent grid, in which each block computes several tiles in turn;
        - "num_sms": the number of blocks of a persistent grid.

        Usual spellings are recognised for names that are not given (BLOCK_M, BLOCK_SIZE_M, ..., a_ptr, a_desc, ...,
        USE_TMA, NUM_SMS).
    dtype : str or pair of str, optional
        The type of the operands: "float16", "bfloat16", "int8", "fp8", "tf32", or "float32" if ``tl.dot`` keeps all
        bits. Give a pair such as ("bfloat16", "int8") if the right operand has 8 bits and the kernel converts it. The
        default is the type of the tensors, with float32 as "tf32" (the default of ``tl.dot``).

    Raises
    ------
    SpaceError
        `keep`, `names` or `dtype` is wrong.
    UnknownNameError, SpecError
        The named device is unknown. "auto" is looked up at the first call, which raises nothing.

    Warns
    -----
    NotJudgedWarning
        At a call, once for each reason: the model does not know a part of it (a batch, other types, more blocks than
        tiles, an empty product, an unknown device). The configurations concerned are kept.
    """
    return MatmulPruner(hw, keep, names, dtype)


@dataclass
class _Call:
    """The last call: its configurations, and what became of them by index.

    `reason` says why the call could not be judged, and `unjudged` why single configurations could not.
    """

    configs: list[Config]
    kept: set[int]
    problem: Problem | None = None
    tiles: Mapping[int, list[int]] = field(default_factory=dict)
    unjudged: Mapping[int, str] = field(default_factory=dict)
    reason: str = ""


class MatmulPruner(KernelPruner):
    """The pruner for configurations of a kernel that multiplies matrices.

    It is deterministic. It keeps the best predicted configurations, the caller's first one (unless `keep` is 1), and
    those that cannot be judged. It never raises an error when Triton calls it. One object may serve many shapes.
    """

    name = "matmul_pruner"

    def __init__(
        self, hw: GpuLike = AUTO, keep: float = 8, names: KernelNames | None = None, dtype: DtypeLike | None = None
    ) -> None:
        super().__init__(hw, keep)
        self._arguments = ArgumentNames(names, dtype)
        self._timed_problem: Problem | None = None
        self._times: dict[tuple[int, ...], float] = {}
        self._call: _Call | None = None

    @property
    def product(self) -> Problem | None:
        """The product of the last call; None before the first call, or if the call could not be judged."""
        return None if self._call is None else self._call.problem

    def early_config_prune(
        self, configs: Sequence[Config], named_args: Arguments | None = None, **kwargs: Argument
    ) -> list[Config]:
        """Return the configurations to measure, best first; Triton calls this.

        Configurations with options that the model does not know are kept, after the others. The whole list is kept if
        the model does not know the product or the device, or if no configuration is legal. A `NotJudgedWarning` gives
        the reason, once for each.

        Parameters
        ----------
        configs : sequence of triton.Config
            The configurations. The first one is the caller's default, and is kept unless `keep` is 1.
        named_args, kwargs
            The arguments of the kernel by name, and the grid.
        """
        configs = list(configs)
        arguments = {**(named_args or {}), **kwargs}
        self._call = _Call(configs, set(range(len(configs))))
        if not configs:
            return []
        try:
            reading = self._read_configs(configs, arguments)
            problem, tiles, unjudged = reading.problem, reading.rows, reading.unjudged
            order = self._rank_tiles(problem, tiles)
        except AnatuneError as error:
            self._call.reason = str(error)
            self._warn_once(f"{error}; all {len(configs)} configurations are kept")
            return configs
        if not order:
            self._call.reason = f"every configuration breaks a limit of {self.hardware.name} for {problem.describe()}"
            self._warn_once(f"every configuration breaks a limit of {self.hardware.name}; all {len(configs)} are kept")
            return configs
        kept = self._select_first(order, tiles)
        for reason in dict.fromkeys(unjudged.values()):
            self._warn_once(f"{reason}; such configurations are kept, together with the {len(kept)} best of the others")
        kept += list(unjudged)
        self._call = _Call(configs, set(kept), problem, tiles, unjudged)
        return [configs[place] for place in kept]

    def perf_model(self, **arguments: Argument) -> float:
        """Return the predicted seconds of one configuration, infinite if it breaks a limit; Triton calls this.

        The result is 0 if the configuration cannot be judged, so that the list keeps its order. A `NotJudgedWarning`
        gives the reason once.

        Parameters
        ----------
        arguments
            The arguments of the kernel, meta-parameters, ``num_warps`` and ``num_stages``, by name.
        """
        try:
            if option := unmodelled_option(arguments):
                raise SpaceError(f"the model does not know the option {option}")
            reading = self._read(arguments)
            tile = self._arguments.tile(arguments, arguments.get("num_warps", 4), arguments.get("num_stages", 3))
            if self._timed_problem != reading.problem:
                self._timed_problem, self._times = reading.problem, {}
            return self._seconds(reading.problem, tuple(reading.row(tile, {})))
        except AnatuneError as error:
            self._warn_once(f"{error}; perf_model returns 0, which keeps the order")
            return 0.0

    def _read(self, arguments: Arguments) -> CallReading:
        """Read the product of a call; raise SpaceError if the model does not know it."""
        return ProductReading(self._arguments, arguments, self.hardware.compute.num_sms)

    def _read_configs(self, configs: Sequence[Config], arguments: Arguments) -> JudgedConfigs:
        return read_tiles(self._arguments, configs, arguments, lambda: self._read(arguments))

    def _seconds(self, problem: Problem, tile: tuple[int, ...]) -> float:
        if tile not in self._times:  # Triton asks for one at a time; scoring thousands at once takes no longer than ten
            usual = [] if self._times else itertools.product(*_USUAL, *([value] for value in tile[len(_USUAL) :]))
            rows = [tile, *usual]
            scores, _ = score_problem(problem, Tiles.of(rows), self.hardware)
            seconds = np.where(scores.resources.rule == 0, scores.time_s, np.inf)
            self._times |= dict(zip(rows, seconds.tolist(), strict=True))
        return self._times[tile]

    def explain(self, config: Config, **arguments: Argument) -> Verdict:
        """Return why a configuration is measured or not.

        Parameters
        ----------
        config : triton.Config
            The configuration.
        arguments
            The arguments of the kernel by name. The default is those of the last call.

        Raises
        ------
        SpaceError
            There was no call yet and no arguments are given, or the configuration has no tile sizes.
        """
        if arguments:
            reading = self._read_configs([config], arguments)
            call = _Call([config], {0}, reading.problem, reading.rows, reading.unjudged)
        elif self._call is None:
            raise SpaceError("explain: the kernel was not called yet; call it first, or pass its arguments by name")
        else:
            call = self._call
        index = next((at for at, known in enumerate(call.configs) if known is config or _is_same(known, config)), None)
        if call.problem is None or (index is not None and index in call.unjudged):
            reason = call.reason if index is None else call.unjudged.get(index, call.reason)
            unknown = dict.fromkeys(("time_s", "best_s", "cut_s", "factor"), math.nan)
            text = f"kept, because it cannot be judged: {reason}"
            return Verdict(index is not None, None, "", None, None, **unknown, bound_by="", text=text)
        tiles = dict(call.tiles)
        if index is None:
            index = len(call.configs)
            tile = self._arguments.tile(config.kwargs, config.num_warps, config.num_stages)
            tiles[index] = [*tile, *next(iter(tiles.values()))[len(tile) :]]  # options of the others
        return self._verdict(call.problem, tiles, index, call.kept)

    def _rank_tiles(self, problem: Problem, tiles: Mapping[int, list[int]]) -> list[int]:
        """Return the indices of the legal tiles, best first."""
        places = list(tiles)
        return [places[at] for at in score_problem(problem, Tiles.of(list(tiles.values())), self.hardware)[1].tolist()]

    def _verdict(self, problem: Problem, tiles: Mapping[int, list[int]], index: int, kept: set[int]) -> Verdict:
        places = list(tiles)
        scores, legal_rows = score_problem(problem, Tiles.of(list(tiles.values())), self.hardware)
        seconds = dict(zip(places, scores.time_s.tolist(), strict=True))
        row = places.index(index)
        order = [places[at] for at in legal_rows.tolist()]
        kept_here = kept & set(places)
        first = order[: len(kept_here)]
        chosen = [at for at in order if at in kept_here and (at != 0 or at in first)]  # the first is always kept
        time_s = seconds[index]
        best_s = seconds[order[0]] if order else time_s
        cut_s = seconds[chosen[-1]] if chosen else time_s
        part = binding_resources(scores, np.array([row]))[0]
        is_kept, rule = index in kept, int(scores.resources.rule[row])
        rank = order.index(index) + 1 if index in order else None
        subject = f"{problem.describe()} on {self.hardware.name}"
        needed = limit = None
        name = ""
        if rule:
            broken = scores.resources.rules[rule - 1]
            needed, limit, name = float(scores.resources.needed[row]), broken.limit, broken.id
            reason = f"{broken.id}: {broken.text}: {needed:.10g}" + (f", limit {limit:.10g}" if limit else "")
        else:
            reason = (
                f"predicted {time_s * 1e6:.4g} us ({against_best(time_s, best_s)}), rank {rank} of {len(order)}, "
                f"bound by {part}"
            )
        if is_kept:
            is_kept_as_first = index == 0 and index not in first
            text = f"kept for {subject}{' (the first one is always kept)' if is_kept_as_first else ''}: {reason}"
        else:
            slower = "" if rule else f"; {time_s / cut_s:.3g} times the time of the slowest one kept by prediction"
            text = f"left out for {subject}: {reason}{slower}"
        return Verdict(is_kept, rank, name, needed, limit, time_s, best_s, cut_s, time_s / cut_s, part, text)


def _is_same(config: Config, other: Config) -> bool:
    keys = ("kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
    return all(getattr(config, key, None) == getattr(other, key, None) for key in keys)
