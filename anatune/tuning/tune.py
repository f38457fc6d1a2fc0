"""The library call `anatune.tune`, which tunes one workload."""

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
    """Build, check and time schedules of `workload` and return the fastest, on this machine, a cluster or boards.

    The plan's first choice is measured first (not with ``start="paper"``). At the end it is measured again in turn with
    the best schedules. A schedule that fails gets an outcome instead of a time; that does not end the session.

    Parameters
    ----------
    workload : Workload
        The workload to tune.
    hw : CpuSpec, GpuSpec, str or Path
        The device that measures: "host" (this CPU), "host_gpu" (this GPU), or a spec, its name or its file. With
        `cluster` or `tracker`, "host" is their CPU and "host_gpu" their GPU.
    trials : int
        Number of schedules to measure, with those of a resumed session.
    strategy : str
        The search strategy, one of `anatune.search.base.STRATEGIES`; `bayes` takes settings, see
        `anatune.search.base.check_strategy`.
    records : str or Path, optional
        The record file, or "postgresql://..." of a server. Each trial is on the disk before the next one begins. By
        default nothing is recorded.
    threads : int, optional
        Number of threads of CPU kernels; by default the cores of `hw` that this process may use. The library reads no
        environment variables; the command line passes TVM_NUM_THREADS.
    seed : int
        Seed of the strategy's random choices and of the operands; a resumed session keeps its own.
    resume : bool
        Continue the latest session of this workload, device, threads and strategy in `records`; if there is none, begin
        a new one.
    progress : callable, optional
        Called with a `TuningProgress` at the beginning, after each trial and before the final comparison.
    limits : Limits, optional
        Limits on the time and memory of one trial.
    time_limit_s : float, optional
        Start no new trial after this many seconds.
    template : str, optional
        The only template to use: "cuda", "pipelined", "thin", "triton", "cpu", "winograd", "scaled",
        "fp16_accumulation" or "amx". By default on GPUs: "pipelined" if it applies, else "cuda", and "thin" and
        "triton" (if Triton is installed) if they apply; on CPUs all templates that apply. With several templates,
        `strategy` searches each space, and the trials go to the most promising one (`anatune.search.shared`). With
        ``start="paper"`` only the default template is used.
    accuracy : {"standard", "relaxed"}
        The admitted arithmetic, as in `anatune.plan`. A session of another accuracy is not resumed.
    l2 : {"flush", "warm"}, optional
        GPUs: flush the L2 cache before each launch (the default), or keep the data of the previous launch there.
    device : int
        GPUs: the CUDA device number.
    backend : str, optional
        GPUs: "pycuda" or "cuda-bindings"; by default the one that works.
    manifest : str or Path, optional
        GPUs: folder of kernels that ``anatune tune --build-only`` built on another machine. They are measured in their
        order, without `strategy` and `seed`, and need neither TVM nor a compiler.
    start : {"model", "paper"}
        Start the strategy from the model's ranking, or as it was published. As published, neither recorded schedules
        nor the plan's first choice are measured first, except by the default strategy, which has no published form. A
        session of another start is not resumed.
    cluster : str, distributed.Client or concurrent.futures.Executor, optional
        A Dask cluster of ``anatune worker`` processes that build and measure, by its address ("tls://lab:8786") or a
        client; or an executor that builds while this machine measures.
    tls : str or Path, optional
        Folder of the cluster's certificates: ca.pem, cert.pem, key.pem (docs/howto/fleets.md).
    tracker, key : str, optional
        Boards that measure: "host:port" of TVM's RPC tracker, and the key under which the boards are registered.
    reuse : bool
        Use the `records` of this device: measure the best recorded schedules of this workload first; on GPUs also learn
        the model's errors from all recorded workloads (LightGBM), if that helps on workloads that were left out.
    stop_at : float, optional
        A share, above 0 and up to 1: end the session once the lower bound on the time
        (`anatune.model.bound.time_bound`) over the best measured time is at least that.
    patience : int, optional
        End the session after this many trials in a row without a kernel that is faster beyond noise.

    Raises
    ------
    DeviceError
        `hw` is not the device that measures; there is none; it disappeared (all trials before that are kept).
    SpaceError, UnknownNameError
        An argument is wrong; no schedule is legal.
    SpecError
        The spec file is damaged.
    RecordError
        The record file cannot be used, or the disk is full; all trials before that are kept.
    MissingDependencyError
        TVM is not installed.
    TuningInterrupted
        Ctrl-C (a KeyboardInterrupt); its ``.result`` is the result so far.
    """
    settings = TuningSettings(
        trials=trials, strategy=strategy, start=start, seed=seed, time_limit_s=time_limit_s, records=records,
        resume=resume, limits=limits, threads=threads, template=template, accuracy=accuracy, l2=l2, device=device,
        backend=backend, manifest=manifest, cluster=cluster, tls=tls, tracker=tracker, key=key, reuse=reuse,
        stop_at=stop_at, patience=patience,
    )  # fmt: skip
    return TuningSession(workload, hw, settings, progress).run()
