"""Runs Triton modules on the CPU, in Triton's interpreter: whether their text is right can be known without a GPU."""

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
    "Triton's interpreter ran the kernel's text; it cannot see what the compiler makes of it: layouts, tensor memory, "
    "copies by TMA, races between warps, warp specialisation"
)
"""What a check in the interpreter leaves open."""
_RUN = "anatune.measure.emulate.triton_process:run_program"
_ENVIRONMENT = {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
_FLOP_PER_S = 1e8
_PROGRAM_S = 0.5
"""An interpreter makes more of each, on a busy core; small tiles make it slow."""
_START_S = 60.0
_one_at_a_time = new_lock()


@functools.cache
def _worker() -> Worker:
    """Return the process that interprets; it starts when it is first given something."""
    worker = Worker("interpreter", environment=_ENVIRONMENT)
    atexit.register(worker.kill)
    return worker


def interpret(program: TritonProgram, inputs: Mapping[str, Array], limit_s: float = 600.0) -> dict[str, Array]:
    """Return what a program makes of operands: its results by tensor.

    It runs in a process of its own, which stays for the next call: one that interprets can compile nothing. Safe to
    call from several threads; they wait for each other.

    Parameters
    ----------
    inputs : mapping of str to ndarray
        Operands by tensor, in the dtypes and shapes of the program's parameters; of a result that is written in part:
        what it was before.
    limit_s : float
        Seconds after which it is ended.

    Raises
    ------
    RunError
        It is no Triton, did what no kernel may, or did not end in time: the message says what.
    MissingDependencyError
        Triton is not installed.
    """
    with _one_at_a_time:
        worker = _worker()
        worker.submit(_RUN, {"program": program, "inputs": dict(inputs)}, limit_s)
        try:
            reply = worker.wait(limit_s + _START_S)
        except BaseException:  # an interrupt: what it has begun is nobody's any more
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
    """Interpret a program and compare its results with what was expected; errors as `interpret`."""
    limit_s = _START_S + workload.flop / _FLOP_PER_S + sum(kernel.grid for kernel in program.kernels) * _PROGRAM_S
    return compare_all(workload, interpret(program, inputs, limit_s), want)
