"""The object that Triton's autotuner asks which configurations of an attention kernel deserve to be measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anatune.adapters.device import AUTO, GpuLike
from anatune.adapters.triton.asked import Config, KernelPruner, unmodelled_option
from anatune.adapters.triton.operands import Argument, Arguments
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, SpaceError
from anatune.templates.triton.attention.problem import AttentionTiles
from anatune.templates.triton.attention.rules import check_supported
from anatune.templates.triton.attention.times import score_attention

WorkloadLike = Workload | Callable[[Mapping[str, Argument]], Workload]
_BLOCK_M = ("BLOCK_M", "BLOCK_SIZE_M", "BLOCK_Q")
_BLOCK_N = ("BLOCK_N", "BLOCK_SIZE_N", "BLOCK_KV")
_SPLIT = ("SPLIT_KV", "NUM_SPLITS", "SPLIT")


def attention_pruner(workload: WorkloadLike, hw: GpuLike = AUTO, keep: float = 8) -> AttentionPruner:
    """Return what ``triton.autotune(prune_configs_by=...)`` takes, for a kernel of attention's forward pass.

    Parameters
    ----------
    workload
        What the kernel computes, of `anatune.attention`; or a function that makes it of the arguments by name.
    hw
        A device's name, a TOML file or a spec; "auto": what ANATUNE_HW names, else the present device.
    keep : int or float
        Configurations to measure (a count), or a share of the legal ones. The caller's first configuration is one of
        them; only 1 keeps the best predicted and nothing else.

    Raises
    ------
    SpaceError
        `keep` is wrong, or `workload` is no attention.
    UnknownNameError, SpecError
        The device that is named is unknown; "auto" is looked up at the first call, where nothing is raised.

    Warns
    -----
    NotJudgedWarning
        At a call: a configuration has no block sizes, or options that the model does not know; it stays in the list.
    """
    return AttentionPruner(workload, hw, keep)


class AttentionPruner(KernelPruner):
    """Judges configurations of a kernel of attention.

    Guarantees: deterministic; the first configuration and those that cannot be judged are kept.
    """

    name = "attention_pruner"

    def __init__(self, workload: WorkloadLike, hw: GpuLike = AUTO, keep: float = 8) -> None:
        super().__init__(hw, keep)
        if not callable(workload) and getattr(workload, "body", "") != "attention":
            raise SpaceError("attention_pruner: workload is no attention, expected one of anatune.attention(...)")
        self._workload = workload

    def early_config_prune(
        self, configs: Sequence[Config], named_args: Arguments | None = None, **kwargs: Argument
    ) -> list[Config]:
        """Return the configurations to measure, best first; those that cannot be judged behind them."""
        configs = list(configs)
        arguments = {**(named_args or {}), **kwargs}
        unknown = [
            at for at, one in enumerate(configs) if _tile(one.kwargs, one) is None or unmodelled_option(one.kwargs)
        ]
        known = [at for at in range(len(configs)) if at not in unknown]
        if unknown:
            self._say(
                f"{len(unknown)} configurations have no {_BLOCK_M[0]}, {_BLOCK_N[0]}, or options beyond the model: "
                "these stay"
            )
        if not known:
            return configs
        try:
            seconds = self._seconds([_tile(configs[at].kwargs, configs[at]) for at in known], arguments)
        except AnatuneError as error:
            self._say(f"{error}: all {len(configs)} stay")
            return configs
        order = [known[at] for at in np.argsort(seconds, kind="stable") if np.isfinite(seconds[at])]
        if not order:
            self._say(f"no configuration keeps to the limits of {self.hardware.name}: all {len(configs)} stay")
            return configs
        return [configs[at] for at in (*self._first(order, known), *unknown)]

    def perf_model(self, **arguments: Argument) -> float:
        """Return the predicted seconds of one configuration, infinite where it breaks a limit; 0: not judged."""
        try:
            tile = _tile(arguments, None)
            if tile is None:
                raise SpaceError(f"the configuration has no {_BLOCK_M[0]} and {_BLOCK_N[0]}")
            return float(self._seconds([tile], arguments)[0])
        except AnatuneError as error:
            self._say(f"{error}: perf_model leaves the order as it is")
            return 0.0

    def _seconds(self, tiles: Sequence[tuple[int, ...] | None], arguments: Mapping[str, Argument]) -> np.ndarray:  # type: ignore[type-arg]
        workload = self._workload if isinstance(self._workload, Workload) else self._workload(arguments)
        problem = check_supported(workload, self.hardware)
        scores = score_attention(problem, AttentionTiles.of(tiles), self.hardware)
        return np.where(scores.resources.rule == 0, scores.time_s, np.inf)


def _tile(arguments: Mapping[str, Argument], config: Config | None) -> tuple[int, ...] | None:
    """Return block_m, block_n, warps, stages and parts of a configuration; None where it has no block sizes."""
    found = [next((arguments[name] for name in names if name in arguments), None) for names in (_BLOCK_M, _BLOCK_N)]
    split = next((arguments[name] for name in _SPLIT if name in arguments), 1)
    launch = (
        (config.num_warps, config.num_stages)
        if config is not None
        else (arguments.get("num_warps", 4), arguments.get("num_stages", 3))
    )
    sizes = (*found, *launch, split)
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    return tuple(int(size) for size in sizes)  # type: ignore[arg-type]
