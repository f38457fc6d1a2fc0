import itertools
import logging
import random

import pytest

from anatune.core.trial import Outcome
from anatune.core.workload.operators import matmul
from anatune.errors import DeviceError, SpaceError
from anatune.fleet.cluster.fleet import FleetLoss, TaskEnd
from anatune.fleet.cluster.measurer import ClusterMeasurer
from anatune.fleet.cluster.messages import Running, WorkerAnswer, WorkerStanding, encode
from anatune.measure.place import asking
from tests.unit.fleet.cluster.fake_fleet import FakeFleet
from tests.unit.fleet.cluster.pretended import (
    HARDWARE,
    REFERENCE_S,
    WORKLOAD,
    PretendedStation,
    other,
    schedule,
    time_of,
)
from tests.wording import refuses


@pytest.fixture
def cluster():
    """Return what makes a fleet of pretended stations and a measurer on it."""

    def make(*stations, **more):
        fleet = FakeFleet(*stations)
        options = {"wait_s": 5, "clock": lambda: fleet.now} | more
        return fleet, ClusterMeasurer(WORKLOAD, HARDWARE, connect=fleet.connect, **options)

    return make


def states(measurer):
    return {one.name: (one.state, one.trials, one.failed) for one in measurer.workers()}


def whys(measurer):
    return {one.name: one.why for one in measurer.workers()}


def served(measurer, count):
    with measurer:
        answers = list(measurer.serve(asking(schedule(number) for number in range(count))))
    assert sorted(one.unroll for one, _ in answers) == list(range(count))
    return [measurement for _, measurement in answers]


def test_every_schedule_has_one_answer_with_the_name_of_who_measured_it(cluster):
    fleet, measurer = cluster(PretendedStation("a"), PretendedStation("b"))
    with measurer:
        answers = list(measurer.serve(asking(schedule(number) for number in range(20))))
    assert sorted(one.unroll for one, _ in answers) == list(range(20))
    assert all(measurement.time_s == time_of(one.unroll) for one, measurement in answers)
    assert {measurement.worker for _, measurement in answers} == {"a", "b"}
    assert measurer.incumbent == min(time_of(number) for number in range(20)) / REFERENCE_S
    assert sum(trials for _, trials, _ in states(measurer).values()) == 20
    assert all(one.environment is not None for one in measurer.workers())
    assert [kind for kind, _, _ in fleet.asked].count("lease") == 2


def test_no_more_is_asked_for_than_devices_and_builders_have_use_for(cluster):
    fleet, measurer = cluster(PretendedStation("a"), PretendedStation("b"))
    out, most = set(), []

    def ask():
        number = len(most)
        if number == 50:
            return None
        out.add(number)
        most.append(len(out))
        return schedule(number)

    with measurer:
        for one, _ in measurer.serve(ask):
            out.discard(one.unroll)
    assert len(most) == 50
    assert 4 <= max(most) <= 8  # two devices with two kernels each, four build slots
    builds = [number for kind, _, number in fleet.asked if kind == "build"]
    assert len(builds) == 51


def test_a_strategy_that_waits_for_an_answer_is_asked_again_after_each(cluster):
    _, measurer = cluster(PretendedStation("a"))
    numbers, told = iter(range(5)), [None]

    def ask():
        if not told:
            return None
        told.clear()
        number = next(numbers, None)
        return None if number is None else schedule(number)

    with measurer:
        for _ in measurer.serve(ask):
            told.append(None)
    assert next(numbers, None) is None


def test_answers_come_while_one_stays_out_and_that_one_comes_from_elsewhere(cluster):
    fleet, measurer = cluster(PretendedStation("good"), PretendedStation("mute"))
    fleet.holds = lambda kind, worker, number: kind == "measure" and worker == "mute"
    with measurer:
        serving = measurer.serve(asking(schedule(number) for number in range(12)))
        answers = [next(serving) for _ in range(8)]
        assert {measurement.worker for _, measurement in answers} == {"good"}
        del fleet.stations["mute"]
        answers += serving
    assert sorted(one.unroll for one, _ in answers) == list(range(12))
    assert all(measurement.outcome is Outcome.OK for _, measurement in answers)
    assert states(measurer)["mute"] == ("lost", 0, 0)
    assert whys(measurer)["mute"] == "it left the cluster"


def test_who_does_not_answer_in_time_is_asked_for_nothing_more(cluster):
    fleet, measurer = cluster(PretendedStation("good"), PretendedStation("mute"))
    fleet.holds = lambda kind, worker, number: kind == "measure" and worker == "mute"
    answers = served(measurer, 6)
    assert {measurement.worker for measurement in answers} == {"good"}
    assert states(measurer)["mute"][0] == "quarantined"
    assert whys(measurer)["mute"] == "it did not answer within 70 s"


def test_a_run_that_takes_too_long_is_noticed_by_what_its_worker_tells(cluster):
    fleet, measurer = cluster(PretendedStation("good"), PretendedStation("slow"))
    fleet.holds = lambda kind, worker, number: kind == "measure" and worker == "slow"

    def standing():
        first = next((number for kind, worker, number in fleet.asked if (kind, worker) == ("measure", "slow")), None)
        return WorkerStanding() if first is None else WorkerStanding((Running(measurer.session, first, "run", 91.0),))

    fleet.stations["slow"].standing = standing
    served(measurer, 6)
    assert whys(measurer)["slow"] == "it did not answer within 90 s"
    assert fleet.now < 20


def test_the_turn_of_another_session_is_waited_for(cluster):
    fleet, measurer = cluster(PretendedStation("busy"))
    until = 300.0
    fleet.holds = lambda kind, worker, number: kind == "measure" and fleet.now < until
    fleet.stations["busy"].standing = lambda: WorkerStanding(
        (Running("other", 7, "run", 5.0),) if fleet.now < until else ()
    )
    answers = served(measurer, 2)
    assert all(measurement.outcome is Outcome.OK for measurement in answers)
    assert states(measurer)["busy"] == ("ready", 2, 0)


def test_a_silent_worker_is_lost_and_taken_again_when_it_speaks(cluster):
    fleet, measurer = cluster(PretendedStation("good"), PretendedStation("silent"))
    fleet.holds = lambda kind, worker, number: worker == "silent" and fleet.silent.get("silent", 0.0) > 0
    fleet.silent["silent"] = 31.0
    with measurer:
        serving = measurer.serve(asking(schedule(number) for number in range(30)))
        answers = [next(serving) for _ in range(5)]
        assert states(measurer)["silent"][0] == "lost"
        fleet.silent.clear()
        answers += serving
    assert len(answers) == 30
    assert {measurement.worker for _, measurement in answers} == {"good", "silent"}
    assert states(measurer)["silent"][0] == "ready"


def test_a_trial_with_which_two_workers_were_lost_is_not_tried_again(cluster):
    fleet, measurer = cluster(PretendedStation("a"))
    names = iter("bc")
    fatal = []

    def holds(kind, worker, number):
        if kind == "measure" and worker in "ab":
            fatal.append(worker)
            fleet.then.append(lambda: _replace(fleet, worker, next(names)))
            return True
        return False

    fleet.holds = holds
    ((measurement),) = served(measurer, 1)
    assert measurement.outcome is Outcome.LOST_DEVICE
    assert measurement.message == "2 workers were lost while they ran it: a, b"
    assert fatal == ["a", "b"]


def _replace(fleet, worker, name):
    del fleet.stations[worker]
    fleet.stations[name] = PretendedStation(name)


def test_late_and_double_answers_are_dropped(cluster):
    fleet, measurer = cluster(PretendedStation("a"), PretendedStation("b"))
    put = fleet.events.put

    def twice(event):
        put(event)
        if isinstance(event, TaskEnd):
            put(event)

    fleet.events.put = twice
    assert len(served(measurer, 10)) == 10
    assert sum(trials for _, trials, _ in states(measurer).values()) == 10


def test_a_failure_of_the_worker_is_repeated_elsewhere_and_held_against_it(cluster):
    _, measurer = cluster(PretendedStation("good"), PretendedStation("liar", fault="wrong"))
    answers = served(measurer, 20)
    assert all(measurement.outcome is Outcome.OK for measurement in answers)
    assert {measurement.worker for measurement in answers} == {"good"}
    assert states(measurer)["liar"] == ("quarantined", 0, 0)
    assert whys(measurer)["liar"] == "3 of its failures did not occur elsewhere, the last one on good"


def test_a_failure_of_the_schedule_is_one_on_both_and_counts_once(cluster):
    fleet, measurer = cluster(PretendedStation("a"), PretendedStation("b"))
    with measurer:
        ((_, measurement),) = measurer.serve(asking([schedule(1, "wrong result")]))
    assert measurement.outcome is Outcome.WRONG_RESULT
    assert [kind for kind, _, _ in fleet.asked].count("measure") == 2
    assert sorted(states(measurer).values()) == [("ready", 0, 0), ("ready", 1, 1)]


@pytest.mark.parametrize(("fault", "builds"), [("no program", 1), ("build fails", 2)])
def test_a_build_that_fails_is_repeated_only_where_the_worker_may_be_at_fault(cluster, fault, builds):
    fleet, measurer = cluster(PretendedStation("a"), PretendedStation("b"))
    with measurer:
        ((_, measurement),) = measurer.serve(asking([schedule(1, fault)]))
    assert measurement.time_s is None
    assert [kind for kind, _, _ in fleet.asked].count("build") == 1 + builds  # and the reference kernel


def test_a_builder_whose_failures_others_refute_builds_no_more(cluster):
    _fleet, measurer = cluster(PretendedStation("good"), PretendedStation("full", fault="builds nothing"))
    # The reference kernel of the other one.
    answers = served(measurer, 20)
    assert all(measurement.outcome is Outcome.OK for measurement in answers)
    assert states(measurer)["full"][0] == "quarantined"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("no lease", "the runner process cannot be set up: no device"),
        ("trouble", "the GPU has fallen off the bus"),
        ("cannot build", "TVM is not installed"),
        ("nonsense", "a measurement has a sample that is not a positive number of seconds"),
    ],
)
def test_what_a_worker_cannot_do_others_do(cluster, fault, why):
    _, measurer = cluster(PretendedStation("bad", fault=fault), PretendedStation("good"))
    answers = served(measurer, 10)
    assert all(measurement.outcome is Outcome.OK for measurement in answers)
    assert states(measurer)["bad"][0] == "quarantined"
    assert why in whys(measurer)["bad"]


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", "text", None, encode(WorkerAnswer("0" * 32, 3)), encode(Running("a", 1, "run", 0.0))]
)
def test_an_answer_that_is_none_is_not_used(cluster, content):
    fleet, measurer = cluster(PretendedStation("good"), PretendedStation("forger"))
    put = fleet.events.put

    def forged(event):
        asked = [number for kind, worker, number in fleet.asked if (kind, worker) == ("measure", "forger")]
        put(TaskEnd(event.number, content) if isinstance(event, TaskEnd) and event.number in asked else event)

    fleet.events.put = forged
    answers = served(measurer, 10)
    assert {measurement.worker for measurement in answers} == {"good"}
    assert states(measurer)["forger"][0] == "quarantined"


def test_what_a_lost_worker_had_built_is_built_again(cluster):
    fleet, measurer = cluster(PretendedStation("a", builders=0), PretendedStation("b", builders=2, device=None))
    fleet.holds = lambda kind, worker, number: kind == "measure" and "b" in fleet.stations

    def lose():
        if any(kind == "measure" for kind, _, _ in fleet.asked):
            _replace(fleet, "b", "c")
        else:
            fleet.run()
            fleet.then.append(lose)

    fleet.then.append(lose)
    answers = served(measurer, 4)
    assert all(measurement.outcome is Outcome.OK for measurement in answers)
    assert {worker for kind, worker, _ in fleet.asked if kind == "build"} == {"b", "c"}


def test_a_comparison_is_on_one_worker_and_builds_nothing_that_is_kept(cluster):
    fleet, measurer = cluster(PretendedStation("a"), PretendedStation("b"))
    with measurer:
        list(measurer.serve(asking(schedule(number) for number in range(6))))
        before = len(fleet.asked)
        measurements = measurer.compare([schedule(number) for number in (2, 0, 40)], 1.0)
    assert [measurement.time_s for measurement in measurements] == [time_of(2), time_of(0), time_of(40)]
    assert len({measurement.worker for measurement in measurements}) == 1
    assert [kind for kind, _, _ in fleet.asked[before:]] == ["build", "compare"]  # 40 was never built


def test_a_comparison_goes_to_another_worker_if_its_own_is_lost(cluster):
    fleet, measurer = cluster(PretendedStation("a"), PretendedStation("b"))
    lost = []

    def holds(kind, worker, number):
        if kind == "compare" and not lost:
            lost.append(worker)
            fleet.then.append(lambda: fleet.stations.pop(worker))
            return True
        return False

    with measurer:
        list(measurer.serve(asking(schedule(number) for number in range(4))))
        fleet.holds = holds
        measurements = measurer.compare([schedule(0), schedule(1)], 1.0)
    assert [measurement.time_s for measurement in measurements] == [time_of(0), time_of(1)]
    assert {measurement.worker for measurement in measurements}.isdisjoint(lost)


def test_without_workers_a_session_says_so_waits_and_ends_with_one_line(cluster, caplog):
    stranger = PretendedStation("stranger")
    stranger.description = other(stranger.description, code="0" * 16)
    fleet, measurer = cluster(stranger)
    with caplog.at_level(logging.WARNING), measurer, pytest.raises(DeviceError) as caught:
        list(measurer.serve(asking([schedule(1)])))
    assert "after 5 s: stranger refused: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(caplog.records) == 1
    assert fleet.now <= 8


def test_a_worker_that_joins_later_is_used(cluster):
    fleet, measurer = cluster(wait_s=100)
    fleet.then += [lambda: None] * 5 + [lambda: fleet.stations.update(late=PretendedStation("late"))]
    assert {measurement.worker for measurement in served(measurer, 3)} == {"late"}


def test_a_lost_scheduler_ends_the_session(cluster):
    fleet, measurer = cluster(PretendedStation("a"))
    fleet.then.append(lambda: fleet.events.put(FleetLoss("tcp://lab:8786: the scheduler is gone (closed)")))
    with measurer, refuses(DeviceError):
        list(measurer.serve(asking([schedule(1)])))


def test_what_is_abandoned_is_taken_back(cluster):
    _fleet, measurer = cluster(PretendedStation("a"))
    with measurer:
        serving = measurer.serve(asking(schedule(number) for number in range(10)))
        next(serving)
        serving.close()
        assert not measurer._requests.tasks_of_jobs()
        assert len(list(measurer.serve(asking([schedule(3)])))) == 1


def test_a_schedule_of_another_workload_is_refused(cluster):
    _, measurer = cluster(PretendedStation("a"))
    strange = schedule(1, workload=matmul(8, 8, 8))
    with measurer, refuses(SpaceError):
        list(measurer.serve(asking([strange])))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_every_schedule_has_one_answer(cluster, seed):
    rng = random.Random(seed)
    names = (f"w{number}" for number in itertools.count())
    faults = ["", "", "", "wrong", "trouble", "no lease", "cannot build", "builds nothing", "nonsense"]

    def station():
        return PretendedStation(
            next(names), rng.randint(0, 3), rng.choice(faults), device=rng.choice([HARDWARE, HARDWARE, None])
        )

    fleet, measurer = cluster(PretendedStation("rock"), *(station() for _ in range(4)))
    fleet.holds = lambda kind, worker, number: worker != "rock" and rng.random() < 0.4
    put = fleet.events.put

    def doubled(event):
        for _ in range(1 + (isinstance(event, TaskEnd) and rng.random() < 0.1)):
            put(event)

    fleet.events.put = doubled

    def happen():
        what = rng.random()
        gone = [name for name in fleet.stations if name != "rock"]
        if what < 0.2 and gone:
            del fleet.stations[rng.choice(gone)]
        elif what < 0.4:
            new = station()
            fleet.stations[new.description.name] = new
        elif what < 0.5 and gone:
            fleet.silent[rng.choice(gone)] = rng.choice([0.0, 40.0])
        fleet.run()
        fleet.now += rng.choice([1.0, 1.0, 30.0])
        if rng.random() < 0.95:
            fleet.then.append(happen)

    fleet.then.append(happen)
    schedules = [schedule(number, rng.choice(["", "", "", "no program", "wrong result"])) for number in range(40)]
    with measurer:
        answers = list(measurer.serve(asking(schedules)))
        best = [one for one, measurement in answers if measurement.outcome is Outcome.OK][:3]
        compared = measurer.compare(best, 1.0)
    assert sorted(one.unroll for one, _ in answers) == list(range(40))
    for one, measurement in answers:
        if one.options["fault"] == "":
            agreed = ("were lost while they ran it", "LLVM says no", "the result is wrong")  # two bad workers may agree
            assert measurement.time_s == time_of(one.unroll) or any(word in measurement.message for word in agreed)
        else:
            assert measurement.time_s is None
    assert [measurement.time_s for measurement in compared] == [time_of(one.unroll) for one in best]
    assert sum(trials for _, trials, _ in states(measurer).values()) <= 40
