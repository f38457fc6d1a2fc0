"""Look-ups and appends in record stores of many trials: medians of what `plan`, `tune` and `compile` ask.

    python -m bench.records_lookup fill PLACE --rows 10000000      # a file, or the URL of an empty database
    python -m bench.records_lookup measure PLACE

Trials are made up: matrix products on some devices with 1 and 8 threads, sessions of 64 trials with a final comparison,
5 samples each, beside a reference kernel; a tenth of all trials are of one product on one device with one thread. Rows
are written past the store, indices made behind them (COPY in PostgreSQL): hours of appends in minutes. What is measured
goes through `anatune.records.store.RecordStore`.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import sqlite3
import statistics
import time
from collections.abc import Iterator
from typing import Any

import msgspec

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.records.choice import COMPARED
from anatune.records.place import ServerAddress, record_place
from anatune.records.rows import TRIAL_DIGEST, RowWriter
from anatune.records.schema import Session, digest, now_utc, trial_text
from anatune.records.store import RecordStore
from anatune.records.tables import trials

_SESSION, _COMPARED = 64, 6
_OFTEN, _SCHEDULES = 100, 200
"""Schedules that half of a session's trials are of; all of a group (fifty times as many in the largest)."""
_SAMPLES = 5
_DEVICES = ("xeon_8124m", "xeon_gold_6230r")
_THREADS = (1, 8)
_COLUMNS = tuple(column.name for column in trials.columns if column.name != "id")
_RELATIVE, _RESULT = _COLUMNS.index("relative"), _COLUMNS.index("result")
assert _COLUMNS[-2:] == ("identity", "digest")
assert _COLUMNS[:-1] == tuple(column.name for column in TRIAL_DIGEST)
_CREATED = "2026-11-22T20:00:00.000000Z"


def workloads(count: int) -> list[Workload]:
    """Return so many different products."""
    extents = itertools.product((64, 96, 128, 192, 256, 320, 384, 512, 640, 768), repeat=3)
    return [anatune.matmul(*sizes) for sizes in itertools.islice(extents, count)]


def schedule_of(workload: Workload, hardware: CpuSpec, number: int) -> Schedule:
    """Return a schedule like those of the CPU template; `number` tells them apart."""
    tiles = {axis.name: (1, 1, 1, axis.extent, 1) for axis in workload.axes}
    options = {"simd_axis": "j", "pair.i": (1, 8, 1, 9), "order.outer": ("j", "i"), "packed": ("B",), "parallel": False}
    return Schedule(workload, hardware, "cpu", tiles, unroll=number, options=options)


def measured(schedule: Schedule, number: int, chance: random.Random, threads: int, source: str) -> Trial:
    """Return a trial whose time rests on its schedule and on chance."""
    time_s = 1e-3 * (1 + schedule.unroll % 97 / 50) * chance.uniform(0.98, 1.1)
    samples = tuple(time_s * (1 + at / 1000) for at in range(_SAMPLES))
    outcome = Measurement(Outcome.OK, times_s=samples, reference_times_s=(1e-3,) * _SAMPLES, max_rel_error=1e-7)
    return Trial(schedule, outcome, number, source, 1.5e-3, threads)


class Maker:
    """Makes the rows of one group's sessions out of texts that are made once."""

    def __init__(
        self, store: RecordStore, workload: Workload, hardware: CpuSpec, threads: int, seed: int, schedules: int
    ) -> None:
        self.template = store.new_session(workload, hardware, threads, "model", seed, {"trials": _SESSION})
        self.chance = random.Random(seed)
        rows = RowWriter()
        self.made: list[list[_Variant]] = []
        for number in range(schedules):
            schedule = schedule_of(workload, hardware, number)
            one = measured(schedule, 0, self.chance, threads, "model")
            row = rows.trial(self.template, _CREATED, self.template.environment, one)
            self.made.append([self._variant(row, schedule, threads, source) for source in ("model", "model", COMPARED)])

    def _variant(self, row: dict[str, Any], schedule: Schedule, threads: int, source: str) -> _Variant:
        trial = measured(schedule, 0, self.chance, threads, source)
        samples = trial.measurement
        told = {"compared": int(source == COMPARED), "time_s": samples.time_s, "relative": samples.relative}
        before, after = trial_text(trial).split('"number":0')
        return [(row | told)[name] for name in _COLUMNS], before + '"number":', after

    def session(self, session: Session) -> Iterator[list[Any]]:
        """Yield the rows of a session, in the order of the table's columns."""
        few = self.chance.sample(self.made[:_OFTEN], _SESSION // 2)
        chosen = list({id(one): one for one in few + self.chance.sample(self.made, _SESSION // 2 - _COMPARED)}.values())
        compared = sorted(chosen, key=lambda one: one[0][0][_RELATIVE])[:_COMPARED]
        for number, one in enumerate(chosen + compared):
            columns, before, after = one[2] if number >= len(chosen) else one[self.chance.random() < 0.5]
            row = columns.copy()
            row[_COLUMNS.index("session")] = session.id
            row[_RESULT] = f"{before}{number}{after}"
            row[-2] = f"{number:032x}"
            row[-1] = digest(*row[:-1])
            yield row


_Variant = tuple[list[Any], str, str]
"""Columns of a row; the text of its result before and behind the trial's number."""


def rows_of(store: RecordStore, count: int, num_workloads: int) -> Iterator[list[list[Any]]]:
    """Yield the rows of one session after the other, `count` rows or a few less."""
    devices = [anatune.hardware(name) for name in _DEVICES]
    groups = list(itertools.product(workloads(num_workloads), devices, _THREADS))
    heavy = max(1, count // 10 // _SESSION)
    each = max(1, (count - heavy * _SESSION) // _SESSION // len(groups))
    made = itertools.count()
    for at, (workload, hardware, threads) in enumerate(groups):
        assert isinstance(hardware, CpuSpec)
        maker = Maker(store, workload, hardware, threads, at, _SCHEDULES if at else 50 * _SCHEDULES)
        sessions = [
            msgspec.structs.replace(maker.template, id=f"{next(made):032x}") for _ in range(each if at else heavy)
        ]
        store.insert(sessions)
        for session in sessions:
            yield list(maker.session(session))


def fill(place: str, count: int, num_workloads: int) -> None:
    """Make a store of `count` trials."""
    began = time.perf_counter()
    with RecordStore(place) as store:
        batches = rows_of(store, count, num_workloads)
        (_fill_server if isinstance(store.path, ServerAddress) else _fill_file)(store, batches)
        took = time.perf_counter() - began
        print(f"{store.path}: {store.num_trials():,} trials in {took:.0f} s")


def _fill_file(store: RecordStore, batches: Iterator[list[list[Any]]]) -> None:
    connection = sqlite3.connect(store.path, isolation_level=None)
    indices = [
        row for row in connection.execute("SELECT name, sql FROM sqlite_master WHERE tbl_name = 'trials' AND sql LIKE "
                                          "'CREATE INDEX%'")
    ]  # fmt: skip
    for name, _ in indices:
        connection.execute(f"DROP INDEX {name}")
    connection.execute("PRAGMA synchronous=OFF")
    insert = f"INSERT INTO trials ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
    while batch := list(itertools.chain.from_iterable(itertools.islice(batches, 200))):  # sessions come in between
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(insert, batch)
        connection.execute("COMMIT")
    connection.execute("PRAGMA cache_size=-1000000")
    for _, statement in indices:
        connection.execute(statement)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _fill_server(store: RecordStore, batches: Iterator[list[list[Any]]]) -> None:
    import psycopg

    assert isinstance(store.path, ServerAddress)
    with psycopg.connect(store.path.reveal(), autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # no foreign keys are looked up
        kept = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'trials' AND indexname NOT IN "
            "('trials_pkey', 'trials_once')"
        ).fetchall()
        connection.execute("ALTER TABLE trials DROP CONSTRAINT trials_once")
        for name, _ in kept:
            connection.execute(f"DROP INDEX {name}")  # type: ignore[arg-type]
        copy = f"COPY trials ({', '.join(_COLUMNS)}) FROM STDIN"
        while batch := list(itertools.chain.from_iterable(itertools.islice(batches, 200))):
            with connection.cursor().copy(copy) as written:  # type: ignore[arg-type]
                for row in batch:
                    written.write_row(row)
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute("ALTER TABLE trials ADD CONSTRAINT trials_once UNIQUE (session, identity)")
        for _, statement in kept:
            connection.execute(statement)
        connection.execute("VACUUM ANALYZE")


# ---- measuring -------------------------------------------------------------------------------------------------


def timed(calls: Iterator[Any]) -> str:
    """Return median and 90th percentile of the seconds that each step of an iterator takes, in ms."""
    took = []
    while True:
        began = time.perf_counter()
        if next(calls, None) is None:
            break
        took.append(1e3 * (time.perf_counter() - began))
    took.sort()
    return f"{statistics.median(took):8.2f} {took[int(0.9 * len(took))]:8.2f}"


def measure(place: str, num_workloads: int, num_lookups: int) -> None:
    """Print medians of look-ups and appends."""
    chance = random.Random(1)
    everything = workloads(num_workloads)
    devices = [anatune.hardware(name) for name in _DEVICES]
    with RecordStore(place) as store:
        print(f"{store.path}: {store.num_trials():,} trials; ms a call: median, 90 %")
        asked = [
            (chance.choice(everything[1:]), chance.choice(devices), chance.choice(_THREADS)) for _ in range(num_lookups)
        ]
        print("best(workload, device, threads, template), first time  ", timed(_bests(store, asked)))
        print("the same, again                                        ", timed(_bests(store, asked)))
        heavy = [(everything[0], devices[0], _THREADS[0])] * 20
        print("the same of the group that has a tenth of all trials   ", timed(_bests(store, heavy)))
        print("bests(workload): devices and threads                   ",
              timed(store.bests(workload) for workload, _, _ in asked[:50]))  # fmt: skip
        print("sessions(workload, device, threads)                    ",
              timed(store.sessions(*one) for one in asked))  # fmt: skip
        ids = [f"{chance.randrange(1000):032x}" for _ in range(50)]
        print(
            "trials(session): 64                                    ", timed(store.trials(session=one) for one in ids)
        )
        print("append                                                 ", timed(_appends(store, everything[0], 500)))
    for writers in (1, 4):
        print(f"appended trials a second, {writers} writers: {_rate(place, everything[:4], writers, 1000):.0f}")


def _bests(store: RecordStore, asked: list[Any]) -> Iterator[Any]:
    for workload, device, threads in asked:
        found = store.best(workload, device, threads, template="cpu")
        assert found is not None
        yield found


def _appends(store: RecordStore, workload: Workload, count: int) -> Iterator[int]:
    hardware = anatune.hardware(_DEVICES[0])
    assert isinstance(hardware, CpuSpec)
    session, chance = store.new_session(workload, hardware, 1, "model", 0, {"at": now_utc()}), random.Random(2)
    made = [measured(schedule_of(workload, hardware, number), number, chance, 1, "model") for number in range(count)]
    for one in made:
        yield store.append(session, one)


def _write(place: str, workload: Workload, count: int) -> None:
    with RecordStore(place, timeout_s=120) as store:
        for _ in _appends(store, workload, count):
            pass


def _rate(place: str, everything: list[Workload], writers: int, count: int) -> float:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write, args=(place, everything[at], count)) for at in range(writers)]
    began = time.perf_counter()
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    return writers * count / (time.perf_counter() - began)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("fill", "measure"))
    parser.add_argument("place", help="a file, or postgresql://...")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--workloads", type=int, default=250)
    parser.add_argument("--lookups", type=int, default=200)
    given = parser.parse_args()
    record_place(given.place)
    if given.step == "fill":
        fill(given.place, given.rows, given.workloads)
    else:
        measure(given.place, given.workloads, given.lookups)


if __name__ == "__main__":
    main()
