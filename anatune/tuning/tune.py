"""The library call that tunes one workload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from anatune.core.workload.nest import Workload
from anatune.measure.named_hardware import HardwareLike
from anatune.measure.run.build_processes import Limits
from anatune.search.base import DEFAULT_STRATEGY
from anatune.tuning.result import TuningProgress, TuningResult
from anatune.tuning.session import TuningSession
from anatune.tuning.settings import TuningSettings


def tune(
    workload: Workload,
    hw: HardwareLike,
    trials: int = 64,
    strategy: str = DEFAULT_STRATEGY,
    records: str | Path | None = None,
    threads: int | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: Callable[[TuningProgress], None] | None = None,
    limits: Limits | None = None,
    time_limit_s: float | None = None,
    *,
    template: str | None = None,
    accuracy: str | None = None,
    l2: str | None = None,
    device: int = 0,
    backend: str | None = None,
    manifest: str | Path | None = None,
    start: str = "model",
    cluster: object = None,
    tls: str | Path | None = None,
    tracker: str | None = None,
    key: str | None = None,
    reuse: bool = True,
    stop_at: float | None = None,
    patience: int | None = None,
) -> TuningResult:
    """Build, check and time schedules of `workload` and return the fastest; on this machine, a cluster or boards.

    The plan's own first choice is measured first (not with ``start="paper"``); at the end it, the best and the
    runners-up are measured once more, in turn. Whatever a schedule does wrong is an outcome of its trial.

    Parameters
    ----------
    workload : Workload
        What is computed.
    hw : CpuSpec, GpuSpec, str or Path
        The device that measures: "host", or a spec, or its name or file; a GPU likewise. With `cluster` or `tracker`,
        "host" is the CPU there, "host_gpu" the GPU.
    trials : int
        How many schedules to measure, with those of a resumed session.
    strategy : str
        Who asks for schedules: one of `anatune.search.base.STRATEGIES`; `bayes` with settings, see
        `anatune.search.base.check_strategy`.
    records : str or Path, optional
        Record file, or "postgresql://..." of a server; every trial is on the disk before the next question. None:
        nothing is kept.
    threads : int, optional
        Threads that CPU kernels run with; by default the cores of `hw` that this process may use. The library reads no
        environment variables; the command line passes TVM_NUM_THREADS.
    seed : int
        Of the strategy's choices and the operands; a resumed session keeps its own.
    resume : bool
        Go on with the latest session of this workload, hardware, threads and strategy in `records`; a new one begins if
        there is none.
    progress : callable, optional
        Called with a `TuningProgress` at the beginning, after every trial and before the comparison.
    limits : Limits, optional
        Time and memory of one schedule.
    time_limit_s : float, optional
        Ask for nothing new after this many seconds.
    template : str, optional
        "cuda", "pipelined", "thin", "triton", "cpu", "winograd", "scaled", "fp16_accumulation" or "amx".
        What the schedules look like. By default on GPUs: CUDA cores, with a staging pipeline where there can be one,
        and "thin" and "triton" (where Triton is installed) if they apply; on CPUs all templates that apply. Of several
        `strategy` walks the space of each, and the trials go where most is to be gained (`anatune.search.shared`). With
        ``start="paper"`` the default template alone.
    accuracy : {"standard", "relaxed"}
        What arithmetic is admitted, as in `anatune.plan`. Sessions that differ in it are not resumed.
    l2 : {"flush", "warm"}, optional
        GPUs: whether the L2 cache holds nothing of the operands when a launch begins (the default), or what the launch
        before left there.
    device : int
        GPUs: number of the device, as CUDA counts.
    backend : str, optional
        GPUs: "pycuda" or "cuda-bindings"; by default the one that works.
    manifest : str or Path, optional
        GPUs: folder of kernels that ``anatune tune --build-only`` built elsewhere; they are measured in their order,
        `strategy` and `seed` do not count. Neither TVM nor a compiler is needed.
    start : {"model", "paper"}
        Where the strategy starts: from the model's ranking, or as it was published. As published, neither the plan's
        first choice (but by the default strategy, which has no published form) nor what `records` suggest is measured
        first. Sessions that differ in it are not resumed.
    cluster : str, distributed.Client or concurrent.futures.Executor, optional
        Who builds and measures: a Dask cluster whose workers are ``anatune worker``, by its address ("tls://lab:8786")
        or a client; an executor builds, and this machine measures.
    tls : str or Path, optional
        Folder of the cluster's certificates: ca.pem, cert.pem, key.pem (docs/howto/fleets.md).
    tracker, key : str, optional
        Boards that measure: TVM's RPC tracker, "host:port", and the key of its servers.
    reuse : bool
        Whether what `records` has of this device is used: the best schedules of this workload are asked for first; on
        GPUs the model's errors are learned from all workloads (LightGBM), where that helps on workloads left out.
    stop_at : float, optional
        Share of the lower bound on the time (`anatune.model.bound.time_bound`), above 0 and up to 1: nothing more is
        asked for once bound over best measured time is at least that.
    patience : int, optional
        Nothing more is asked for after so many trials without one that is better beyond noise.

    Raises
    ------
    DeviceError
        `hw` is not the device that measures; there is none; it disappeared (all trials before that are kept).
    SpaceError, UnknownNameError
        An argument is wrong; no schedule is legal.
    SpecError
        The hardware's file is damaged.
    RecordError
        The record file cannot be used, or the disk is full: all trials before that are kept.
    MissingDependencyError
        TVM is not installed.
    TuningInterrupted
        Ctrl-C (a KeyboardInterrupt); its ``.result`` is what was found so far.
    """
    settings = TuningSettings(
        trials=trials, strategy=strategy, start=start, seed=seed, time_limit_s=time_limit_s, records=records,
        resume=resume, limits=limits, threads=threads, template=template, accuracy=accuracy, l2=l2, device=device,
        backend=backend, manifest=manifest, cluster=cluster, tls=tls, tracker=tracker, key=key, reuse=reuse,
        stop_at=stop_at, patience=patience,
    )  # fmt: skip
    return TuningSession(workload, hw, settings, progress).run()
