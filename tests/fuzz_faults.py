"""A kind of cases of `bench.fuzz` that does in a worker what its name says: dies, hangs, raises, is refused."""

import os
import time
from dataclasses import dataclass

from anatune.errors import BuildError, WorkloadError
from bench.fuzz.program import Outcome


@dataclass(frozen=True)
class Deed:
    what: str
    kind: str = "tests.fuzz_faults"


def judge(deed):
    if deed.what == "dies":
        os.abort()
    if deed.what == "hangs":
        time.sleep(60)
    if deed.what == "raises":
        raise ValueError("unexpected")
    if deed.what == "is refused":
        raise WorkloadError("the model has too many words, expected fewer")
    if deed.what == "is refused in TVM's words":
        raise BuildError("TVM cannot compile the model: Check failed: (x) is false")
    return Outcome("right")
