"""A session of many devices: whatever comes back when, none stands still, and what is lost is asked again."""

import random

import pytest

from anatune.measure.place import WorkerState
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from tests.unit.tuning.fakes import HOST, WORKLOAD, FakeMeasurer, key_of


class Fleet(FakeMeasurer):
    """Several devices that answer in any order; the first answer to every ninth question never comes."""

    devices, loses = 6, True

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.idle, self.put, self.lost = 0, [], set()

    def workers(self):
        return tuple(WorkerState(str(number)) for number in range(self.devices))

    def serve(self, ask):
        rng, waiting = random.Random(0), []
        while True:
            while len(waiting) < self.devices:
                schedule = ask()
                if schedule is None:
                    self.idle += 1
                    break
                waiting.append(schedule)
                self.put.append(schedule.key)
            if not waiting:
                return
            rng.shuffle(waiting)
            schedule = waiting.pop()
            if self.loses and len(self.put) % 9 == 0 and schedule.key not in self.lost:
                self.lost.add(schedule.key)
                continue
            self.measured.append(schedule)
            yield schedule, self.answer(schedule)


class Deaf(Fleet):
    """Nothing ever comes back."""

    def serve(self, ask):
        while (schedule := ask()) is not None:
            self.put.append(schedule.key)
        yield from ()


def session(kind, trials, strategy):
    made = []

    def measurer(*given, **more):
        made.append(kind(*given, **more))
        return made[-1]

    stand_ins = StandIns(host=HOST, measurer=measurer, program_key=key_of)
    settings = TuningSettings(trials=trials, threads=1, strategy=strategy)
    return TuningSession(WORKLOAD, HOST, settings, None, stand_ins), made


@pytest.mark.parametrize("strategy", ["model", "dgd", "droplet", "genetic", "nose"])
def test_every_answer_counts_once_and_the_lost_ones_are_asked_again(strategy):
    tuning, made = session(Fleet, 40, strategy)
    result = tuning.run()
    (fleet,) = made
    keys = [trial.schedule.key for trial in result.trials]
    assert len(keys) == len(set(keys)) == 40
    assert [trial.number for trial in result.trials] == list(range(40))
    assert fleet.lost
    assert all(fleet.put.count(key) == 1 + (key in fleet.lost) for key in keys)
    assert len(fleet.put) == 40 + len(fleet.lost)


@pytest.mark.parametrize("strategy", ["dgd", "droplet", "genetic"])
def test_no_device_waits_for_the_answer_of_another(strategy, monkeypatch):
    monkeypatch.setattr(Fleet, "loses", False)
    tuning, made = session(Fleet, 30, strategy)
    assert len(tuning.run().trials) == 30
    assert made[0].idle <= Fleet.devices  # the last answers, when no further trial is wanted


def test_a_fleet_that_never_answers_ends():
    tuning, made = session(Deaf, 7, "genetic")
    assert tuning.run().trials == []
    assert len(made[0].put) == 14
