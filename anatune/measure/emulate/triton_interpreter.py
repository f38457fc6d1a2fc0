"""Running Triton modules on the CPU in Triton's interpreter, to check them without a GPU."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Mapping

from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.run.correctness import Array, Correctness, Expected, compare_all
from anatune.measure.run.process import Worker, refusal
from anatune.templates.triton.program import TritonProgram
from anatune.threads import new_lock

UNSEEN = (
    "the kernel ran in Triton's interpreter, which does not check what the compiler adds: layouts, tensor memory, "
    "copies by TMA, races between warps, warp specialization"
)
"""The note about errors that the interpreter cannot detect."""
_RUN = "anatune.measure.emulate.triton_process:run_program"
_ENVIRONMENT = {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
_FLOP_PER_S = 1e8
_PROGRAM_S = 0.5
"""Seconds that the interpreter may take for one program of a grid on a busy core."""
_START_S = 60.0
_one_at_a_time = new_lock()


@functools.cache
def _worker() -> Worker:
    """Return the process with the interpreter, which starts when it is used first."""
    worker = Worker("interpreter", environment=_ENVIRONMENT)
    atexit.register(worker.kill)
    return worker


def interpret(program: TritonProgram, inputs: Mapping[str, Array], limit_s: float = 600.0) -> dict[str, Array]:
    """Run a program on operands and return its results by tensor.

    It runs in a separate process, which stays for the next call, because a process with the interpreter cannot compile.
    Several threads may call it; they wait for each other.

    Parameters
    ----------
    inputs : mapping of str to ndarray
        Operands by tensor, in the dtypes and shapes of the program's parameters; for a result that is written in part,
        its contents before.
    limit_s : float
        Seconds after which it is stopped.

    Raises
    ------
    RunError
        The program is invalid, made an error, or did not end in time; the message says which.
    MissingDependencyError
        Triton is not installed.
    """
    with _one_at_a_time:
        worker = _worker()
        worker.submit(_RUN, {"program": program, "inputs": dict(inputs)}, limit_s)
        try:
            reply = worker.wait(limit_s + _START_S)
        except BaseException:  # an interrupt: nobody waits for the result any more
            worker.kill()
            raise
    if reply.kind == "value":
        results: dict[str, Array] = reply.value  # type: ignore[assignment]
        return results
    if reply.error == "RunError":
        raise RunError(reply.message)
    raise refusal(reply, "the Triton interpreter failed")


def check_program(
    workload: Workload, program: TritonProgram, inputs: Mapping[str, Array], want: Expected
) -> Correctness:
    """Interpret a program and compare its results with the expected ones; raise the errors of `interpret`."""
    limit_s = _START_S + workload.flop / _FLOP_PER_S + sum(kernel.grid for kernel in program.kernels) * _PROGRAM_S
    return compare_all(workload, interpret(program, inputs, limit_s), want)
