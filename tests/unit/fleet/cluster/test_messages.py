import math

import msgspec
import pytest

from anatune.core.trial import Measurement, Outcome
from anatune.errors import RunError
from anatune.fleet.cluster.messages import (
    BuildRequest,
    MeasureRequest,
    SessionSetting,
    WorkerAnswer,
    check_measurement,
    decode,
    encode,
)
from anatune.measure.run.build_processes import Limits
from tests.unit.fleet.cluster.pretended import HARDWARE, WORKLOAD, schedule
from tests.wording import refuses

GOOD = Measurement(Outcome.OK, "", (1e-3, 2e-3), (1e-4, 1e-4), 1e-7, 1.0, 0.5)


@pytest.mark.parametrize(
    "message",
    [
        SessionSetting("a" * 32, WORKLOAD, HARDWARE, 2, Limits(), 7, {"cold": "l3"}),
        BuildRequest("a" * 32, 3, HARDWARE, 1, Limits(run_s=3.0), schedule(4)),
        MeasureRequest("a" * 32, 3, (schedule(4),), 0.5),
        WorkerAnswer("a" * 32, 3, (GOOD,)),
    ],
)
def test_messages_arrive_as_they_were(message):
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("content", [b"", b"\xc1", "text", None, 7, encode(Limits())])
def test_what_is_no_message_is_refused(content):
    with refuses(RunError):
        decode(content, WorkerAnswer)


def test_a_good_measurement_is_taken():
    assert check_measurement(GOOD) == GOOD
    failed = Measurement(Outcome.RUN_ERROR, "first line\nsecond" + 5000 * "x")
    assert check_measurement(failed).message.startswith("first line second")
    assert len(check_measurement(failed).message) == 2000


@pytest.mark.parametrize(
    "changes",
    [
        {"times_s": (1e-3,)},
        {"times_s": (), "reference_times_s": ()},
        {"times_s": (1e-3, math.nan)},
        {"times_s": (1e-3, math.inf)},
        {"times_s": (1e-3, 0.0)},
        {"reference_times_s": (1e-3, -1.0)},
        {"build_s": math.nan},
        {"run_s": -1.0},
        {"outcome": Outcome.WRONG_RESULT},
    ],
)
def test_a_measurement_that_cannot_be_is_refused(changes):
    with refuses(RunError):
        check_measurement(msgspec.structs.replace(GOOD, **changes))
