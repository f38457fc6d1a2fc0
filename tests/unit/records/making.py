"""Sessions and trials made by hand: no model and no device is needed."""

from anatune.core.hardware.files import hardware
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.operators import CONSTRUCTORS

MATMUL = CONSTRUCTORS["matmul"](64, 48, 32)
CONV = CONSTRUCTORS["conv2d"](n=1, c=8, h=14, w=14, k=16, r=3, s=3, padding=1)
CPU = hardware("xeon_8124m")


def schedule(rows=4, workload=MATMUL, hardware=CPU):
    """Return a schedule like those of the CPU template; `rows` tells them apart."""
    tiles = {axis.name: (1, 1, 1, axis.extent, 1) for axis in workload.axes}
    options = {"simd_axis": "j", "pair.i": (1, 8, 1, 9), "order.outer": ("j", "i"), "packed": ("B",), "parallel": False}
    return Schedule(workload, hardware, "cpu", tiles, unroll=rows, options=options)


def ok(times=(2e-3, 1e-3, 3e-3), references=(), **changes):
    return Measurement(Outcome.OK, times_s=times, reference_times_s=references, max_rel_error=1e-7, **changes)


def failed(outcome=Outcome.BUILD_ERROR, message="LLVM said no"):
    return Measurement(outcome, message, build_s=0.1)


def trial(number=0, measurement=None, **changes):
    made = {"schedule": schedule(number + 1), "number": number, "source": "plan", "predicted_s": 1.5e-3, "threads": 1}
    return Trial(measurement=measurement or ok(), **{**made, **changes})


def session_of(store, workload=MATMUL, hardware=CPU, threads=1, strategy="dgd", seed=7, **settings):
    return store.new_session(workload, hardware, threads, strategy, seed, settings)
