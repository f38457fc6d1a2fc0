"""Many kernels of Triton's compiled at once, in builder processes: one for each core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import BuildError, SpaceError
from anatune.measure.run.build_processes import INVALID_ERRORS, single_threaded
from anatune.measure.run.process import Worker, refusal
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

__all__ = ["compiled_kernels"]

_COMPILE = "anatune.codegen.triton.compiler:compile_kernel"
_SET_UP = "anatune.codegen.triton.artifact:set_up"
_LIMIT_S = 300.0
_START_S = 120.0


def compiled_kernels(
    wanted: Sequence[tuple[TritonProgram, TritonKernel]],
    hardware: GpuSpec,
    workers: int,
    progress: Callable[[int], None] | None = None,
) -> list[Cubin]:
    """Return the machine code of kernels, in order.

    Parameters
    ----------
    workers : int
        Processes.
    progress : callable, optional
        Called with the kernels compiled so far.

    Raises
    ------
    BuildError, SpaceError
        Triton refuses one, or takes too long.
    RunError, MissingDependencyError
        Processes cannot be started; Triton is not installed.
    """
    free: SimpleQueue[Worker] = SimpleQueue()
    own = [
        Worker("builder", environment=single_threaded(None), setup=(_SET_UP, {}), setup_s=_START_S)
        for _ in range(max(1, min(workers, len(wanted))))
    ]
    for worker in own:
        free.put(worker)
    done = 0

    def build(one: tuple[TritonProgram, TritonKernel]) -> Cubin:
        nonlocal done
        program, kernel = one
        worker = free.get()
        try:
            worker.submit(_COMPILE, {"program": program, "kernel": kernel, "hardware": hardware}, _LIMIT_S)
            reply = worker.wait(_LIMIT_S + _START_S)
        finally:
            free.put(worker)
        done += 1
        if progress is not None:
            progress(done)
        if reply.kind == "value":
            assert isinstance(reply.value, Cubin)
            return reply.value
        if reply.error in INVALID_ERRORS:
            raise SpaceError(f"{kernel.name}: {reply.message}")
        if reply.error == "BuildError" or reply.kind in ("timeout", "died", "memory"):
            raise BuildError(f"{kernel.name}: {reply.message}")
        raise refusal(reply, f"{kernel.name} cannot be compiled")

    with ThreadPoolExecutor(len(own)) as pool:
        try:
            return list(pool.map(build, wanted))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # what still compiles ends with its process
            for worker in own:
                worker.kill()
