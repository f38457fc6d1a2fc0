"""The pruner for configurations of attention kernels."""

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
    """Return a pruner for ``triton.autotune(prune_configs_by=...)`` and a kernel of attention's forward pass.

    Parameters
    ----------
    workload
        A workload of `anatune.attention`, or a function that makes one from the kernel's arguments (by name).
    hw
        The name, TOML file or spec of a device, or "auto": the device that the environment variable ANATUNE_HW names,
        otherwise the GPU of this machine.
    keep : int or float
        The number of configurations to measure, or a share of the legal ones. The caller's first configuration is
        always one of them, unless `keep` is 1.

    Raises
    ------
    SpaceError
        `keep` is wrong, or `workload` is not attention.
    UnknownNameError, SpecError
        The named device is unknown. "auto" is looked up at the first call, which raises nothing.

    Warns
    -----
    NotJudgedWarning
        At a call, a configuration has no block sizes, or options that the model does not know. It is kept.
    """
    return AttentionPruner(workload, hw, keep)


class AttentionPruner(KernelPruner):
    """The pruner for configurations of an attention kernel.

    It is deterministic, and keeps the first configuration and those that cannot be judged.
    """

    name = "attention_pruner"

    def __init__(self, workload: WorkloadLike, hw: GpuLike = AUTO, keep: float = 8) -> None:
        super().__init__(hw, keep)
        if not callable(workload) and getattr(workload, "body", "") != "attention":
            raise SpaceError("attention_pruner: workload is not attention, expected one of anatune.attention(...)")
        self._workload = workload

    def early_config_prune(
        self, configs: Sequence[Config], named_args: Arguments | None = None, **kwargs: Argument
    ) -> list[Config]:
        """Return the configurations to measure, best first, followed by those that cannot be judged."""
        configs = list(configs)
        arguments = {**(named_args or {}), **kwargs}
        unknown = [
            at for at, one in enumerate(configs) if _tile(one.kwargs, one) is None or unmodelled_option(one.kwargs)
        ]
        judged = [at for at in range(len(configs)) if at not in unknown]
        if unknown:
            self._warn_once(
                f"{len(unknown)} configurations cannot be judged and are kept: they have no {_BLOCK_M[0]} or "
                f"{_BLOCK_N[0]}, or options that the model does not know"
            )
        if not judged:
            return configs
        try:
            seconds = self._seconds([_tile(configs[at].kwargs, configs[at]) for at in judged], arguments)
        except AnatuneError as error:
            self._warn_once(f"{error}; all {len(configs)} configurations are kept")
            return configs
        order = [judged[at] for at in np.argsort(seconds, kind="stable") if np.isfinite(seconds[at])]
        if not order:
            self._warn_once(f"every configuration breaks a limit of {self.hardware.name}; all {len(configs)} are kept")
            return configs
        return [configs[at] for at in (*self._select_first(order, judged), *unknown)]

    def perf_model(self, **arguments: Argument) -> float:
        """Return the predicted seconds of one configuration; inf if it breaks a limit, 0 if it cannot be judged."""
        try:
            tile = _tile(arguments, None)
            if tile is None:
                raise SpaceError(f"the configuration has no {_BLOCK_M[0]} and {_BLOCK_N[0]}")
            return float(self._seconds([tile], arguments)[0])
        except AnatuneError as error:
            self._warn_once(f"{error}; perf_model returns 0, which keeps the order")
            return 0.0

    def _seconds(self, tiles: Sequence[tuple[int, ...] | None], arguments: Mapping[str, Argument]) -> np.ndarray:  # type: ignore[type-arg]
        workload = self._workload if isinstance(self._workload, Workload) else self._workload(arguments)
        problem = check_supported(workload, self.hardware)
        scores = score_attention(problem, AttentionTiles.of(tiles), self.hardware)
        return np.where(scores.resources.rule == 0, scores.time_s, np.inf)


def _tile(arguments: Mapping[str, Argument], config: Config | None) -> tuple[int, ...] | None:
    """Return block_m, block_n, warps, stages and split of a configuration, or None if it has no block sizes."""
    blocks = [next((arguments[name] for name in names if name in arguments), None) for names in (_BLOCK_M, _BLOCK_N)]
    split = next((arguments[name] for name in _SPLIT if name in arguments), 1)
    launch = (
        (config.num_warps, config.num_stages)
        if config is not None
        else (arguments.get("num_warps", 4), arguments.get("num_stages", 3))
    )
    sizes = (*blocks, *launch, split)
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    return tuple(int(size) for size in sizes)  # type: ignore[arg-type]
