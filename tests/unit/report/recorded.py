"""Sessions for reports, plots and pages: recorded trials made by hand, of which some ran."""

import datetime
import math

import msgspec

from anatune.core.trial import Measurement, Outcome, Trial
from anatune.records.choice import COMPARED
from anatune.records.schema import Record, Session
from tests.unit.records.making import CPU, MATMUL, schedule

BEGUN = datetime.datetime(2026, 11, 22, 12, 0, 0)
EVIL = "<script>document.title = 'taken'</script>"


def utc(seconds):
    return (BEGUN + datetime.timedelta(seconds=seconds)).isoformat(timespec="microseconds") + "Z"


def ran(time_s, *, reference_s=1e-4, num=4, **changes):
    """Return a measurement whose samples differ by a little, those of different times each in their way."""
    times = tuple(time_s * math.exp(0.002 * math.cos(3 * at + 1e6 * time_s)) for at in range(num))
    references = (reference_s * 0.99, *(reference_s,) * (num - 2), reference_s * 1.01)
    return Measurement(
        Outcome.OK, times_s=times, reference_times_s=references, max_rel_error=1e-7, build_s=0.4, run_s=0.1, **changes
    )


def session_of(digit="a", strategy="model", workload=MATMUL, hardware=CPU, **settings):
    from anatune.records.environment import environment

    return Session(digit * 32, utc(0), workload, hardware, 1, strategy, 0, settings, environment())


def recorded(session, measurements, *, predicted_s=None, every_s=2.0, threads=1):
    """Return records of a session: a trial every few seconds, the first one the plan's."""
    records = []
    for number, measurement in enumerate(measurements):
        source = "plan" if number == 0 else session.strategy
        predicted = predicted_s[number] if predicted_s else 1e-3
        made = schedule(number + 1, session.workload, session.hardware)
        trial = Trial(made, measurement, number, source, predicted, threads)
        records.append(Record(number + 1, utc(every_s * (number + 1)), session, session.environment, trial))
    return records


def compared(records, numbers, times_s, num=8):
    """Return the records of a final comparison of some trials, a few seconds after the last one."""
    found = []
    for number, time_s in zip(numbers, times_s, strict=True):
        trial = next(one.trial for one in records if one.trial.number == number)
        again = msgspec.structs.replace(trial, measurement=ran(time_s, num=num), source=COMPARED)
        record = records[-1]
        found.append(Record(record.id + 1 + len(found), utc(1000.0), record.session, record.environment, again))
    return found


def usual(digit="a", strategy="model"):
    """Return the records of a session: eight trials, two failures of one kind, a comparison that the third one wins."""
    no = Measurement(Outcome.BUILD_ERROR, f"error: {EVIL} cannot select\nmore lines", build_s=0.2)
    times = (2.0e-3, 2.4e-3, 1.5e-3, None, 1.9e-3, None, 1.6e-3, 3.0e-3)
    predicted = (1.0e-3, 1.3e-3, 0.9e-3, 0.95e-3, 1.1e-3, 1.0e-3, 0.97e-3, 1.6e-3)
    session = session_of(digit, strategy)
    records = recorded(session, [no if one is None else ran(one) for one in times], predicted_s=predicted)
    return records + compared(records, (2, 6, 0), (1.5e-3, 1.501e-3, 2.0e-3))
