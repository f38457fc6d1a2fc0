"""A `Fleet` without Dask and without waiting: stations of this process, a clock and an order that tests decide."""

import queue
from collections import deque

from anatune.fleet.cluster.fleet import SeenWorker, Snapshot, TaskEnd
from anatune.fleet.cluster.tasks import RequestHandler

_MOST_IDLE = 2000


class _Events:
    """What a `SimpleQueue` is to the measurer; where it would wait, time passes and something happens."""

    def __init__(self, idle):
        self._idle, self._events = idle, deque()
        self._idled = 0

    def put(self, event):
        self._events.append(event)

    def get(self, timeout):
        while not self._events:
            self._idled += 1
            assert self._idled < _MOST_IDLE, "nothing happens any more"
            self._idle()
        return self.get_nowait()

    def get_nowait(self):
        if not self._events:
            raise queue.Empty
        return self._events.popleft()


class FakeFleet:
    """Runs what was submitted whenever the measurer waits; then a second passes and there is a snapshot.

    Attributes
    ----------
    now : float
        The clock.
    asked : list of (kind, worker, number)
        What was submitted.
    then : list of callables
        What happens at the next waits, one each, before anything else.
    holds : callable
        (kind, worker, number) -> whether an answer stays out.
    """

    def __init__(self, *stations):
        self.events = _Events(self._idle)
        self.stations = {station.description.name: station for station in stations}
        self.silent = {}
        self.now = 0.0
        self.asked, self.then = [], []
        self.holds = lambda kind, worker, number: False
        self._calls, self._values, self._dropped = deque(), {}, set()

    def connect(self, session):
        return self

    def look(self):
        seen = {
            address: SeenWorker(station.description, self.silent.get(address, 0.0), station.standing())
            for address, station in self.stations.items()
        }
        return Snapshot(seen)

    def watch(self):
        pass

    def _idle(self):
        if self.then:
            self.then.pop(0)()
            self.events.put(self.look())
            return
        self.run()
        self.now += 1.0
        self.events.put(self.look())

    def submit(self, kind, worker, number, request, *needs):
        self.asked.append(("compare" if len(needs) > 2 else kind, worker, number))
        self._calls.append((kind, worker, number, request, needs))

    def run(self):
        """Answer what was submitted and has what it needs, but for what is at workers that are gone."""
        for _ in range(len(self._calls)):
            kind, worker, number, request, needs = self._calls.popleft()
            station = self.stations.get(worker)
            if station is None or number in self._dropped:
                continue
            if not {*needs} <= self._values.keys() or self.holds("compare" if len(needs) > 2 else kind, worker, number):
                self._calls.append((kind, worker, number, request, needs))
                continue
            self._values[number] = RequestHandler(station).answer(
                kind, request, *(self._values[need] for need in needs)
            )
            self.events.put(TaskEnd(number, None if kind == "build" else self._values[number]))

    def drop(self, number):
        self._dropped.add(number)

    def close(self):
        pass
