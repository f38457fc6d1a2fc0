"""Who serves a session: peaks that are measured again."""

import msgspec

from anatune.fleet.cluster.fleet import SeenWorker, Snapshot
from anatune.fleet.cluster.messages import WorkerStanding
from anatune.fleet.cluster.roster import Roster
from tests.unit.fleet.cluster.pretended import HARDWARE, describe

CALIBRATED = msgspec.structs.replace(
    HARDWARE, compute=msgspec.structs.replace(HARDWARE.compute, source="anatune hw calibrate, a quiet day")
)
USUAL = CALIBRATED.compute.fp32_peak_flop_per_s / CALIBRATED.compute.num_cores


def snapshot(joined, now=()):
    """Workers with what their devices reached when they joined, and what they have reached by now."""
    now = dict(now)
    return Snapshot(
        {
            f"tcp://{name}": SeenWorker(describe(name, peak=peak), 0.0, WorkerStanding(peak_flop_per_s=now.get(name)))
            for name, peak in joined.items()
        }
    )


def states(roster):
    return {one.name: one.state for one in roster.states()}


def test_a_device_that_was_busy_when_it_joined_is_taken_once_it_reaches_what_is_usual():
    roster = Roster(CALIBRATED, 1)
    joined = {"quiet": USUAL, "busy": 0.3 * USUAL}
    roster.update(snapshot(joined))
    assert states(roster) == {"quiet": "ready", "busy": "refused"}
    assert "30% of the expected" in next(one.why for one in roster.states() if one.name == "busy")
    assert roster.update(snapshot(joined, {"busy": 0.35 * USUAL})) == []
    assert states(roster) == {"quiet": "ready", "busy": "refused"}
    assert "35% of the expected" in next(one.why for one in roster.states() if one.name == "busy")
    assert roster.update(snapshot(joined, {"busy": 0.8 * USUAL})) == []
    assert states(roster) == {"quiet": "ready", "busy": "ready"}


def test_without_a_calibration_one_that_is_far_slower_is_judged_anew_when_it_is_quiet():
    roster = Roster(HARDWARE, 1)
    joined = {"one": 0.2e11, "two": 1.85e11}
    roster.update(snapshot(joined))
    assert states(roster) == {"one": "refused", "two": "ready"}
    roster.update(snapshot(joined, {"one": 1.6e11}))
    assert states(roster) == {"one": "ready", "two": "ready"}


def test_who_was_accepted_stays_and_says_what_is_usual():
    roster = Roster(HARDWARE, 1)
    roster.update(snapshot({"one": 1e11}))
    joined = {"one": 1e11, "two": 2.7e11}
    assert roster.update(snapshot(joined)) == []
    assert states(roster) == {"one": "ready", "two": "refused"}
    roster.update(snapshot(joined, {"one": 1.3e11}))
    assert states(roster)["one"] == "ready"
