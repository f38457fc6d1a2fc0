"""Lines of progress without a terminal, what a bar is told, and how the time left is reckoned."""

import sys

import pytest

from anatune.cli import progress
from anatune.cli.progress import Progress, say, time_text


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", made)
    return made


class Bar:
    """Stands for rich's: keeps what was drawn."""

    def __init__(self):
        self.drawn, self.is_there = [], False

    def add_task(self, *_, **__):
        return 0

    def start(self):
        self.is_there = True

    def stop(self):
        self.is_there = False

    def update(self, _, *, description, completed, total, done, left, refresh):
        self.drawn.append((description, None if total is None else round(completed, 2), done, left))


@pytest.fixture
def bar(monkeypatch):
    made = Bar()
    monkeypatch.setattr(progress, "is_terminal", lambda: True)
    monkeypatch.setattr(progress, "_bar", lambda: made)
    return made


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (9.6, "0:10"), (61, "1:01"), (3599.7, "1:00:00"), (7322, "2:02:02")]
)
def test_time_text(seconds, text):
    assert time_text(seconds) == text


def test_lines_of_a_search_without_a_terminal(clock, capsys):
    with Progress() as shown:
        report = shown.search()
        for second in range(31):
            clock.now = 100.0 + second
            report(second / 40)
        report(1.0)
    assert capsys.readouterr().err.splitlines() == [
        "searching: 8 %, 3 s, 0:37 left; --time-limit SECONDS ends the search earlier",
        "searching: 32 %, 13 s, 0:27 left; --time-limit SECONDS ends the search earlier",
        "searching: 57 %, 23 s, 0:17 left; --time-limit SECONDS ends the search earlier",
    ]


def test_what_takes_long_without_a_terminal_is_named_now_and_then(clock, capsys):
    with Progress() as shown:
        shown.begin("building")
        for second in range(25):
            clock.now = 100.0 + second
            shown._say_activity(clock.now)
        shown.begin("comparing")
        clock.now += 9.0
        shown._say_activity(clock.now)
        shown.show("trial 1/2", 1, 2, news=True)  # replaces it
        clock.now += 30.0
        shown._say_activity(clock.now)
    assert capsys.readouterr().err.splitlines() == [
        "building: 3 s so far", "building: 13 s so far", "building: 23 s so far", "comparing: 9 s so far", "trial 1/2",
    ]  # fmt: skip


def test_what_begins_anew_on_a_terminal_has_its_name(clock, bar):
    with Progress(ticking=False) as shown:
        for stage in ("building", "comparing"):
            shown.begin(stage)
            clock.now += 4.0
            shown._draw(clock.now)
    assert bar.drawn == [("building", None, "", "0:04 so far"), ("comparing", None, "", "0:04 so far")]


def test_what_is_short_says_nothing(clock, capsys, bar):
    with Progress(ticking=False) as shown:
        report = shown.count("compiling")
        for done in range(1, 11):
            clock.now += 0.1
            report(done, 10)
    assert (capsys.readouterr().err, bar.drawn) == ("", [])


def test_stages_are_said_once_without_a_terminal(capsys):
    with Progress() as shown:
        tell = shown.stages("calibrate", 60.0)
        for stage, share in (("one core", 0.0), ("one core", 0.5), ("all cores", 0.1)):
            tell(stage, share)
    assert capsys.readouterr().err.splitlines() == ["calibrate: one core", "calibrate: all cores"]


def test_a_bar_of_stages_says_what_all_take_at_most(clock, bar):
    with Progress(ticking=False) as shown:
        tell = shown.stages("calibrate", 60.0)
        tell("one core", 0.0)
        clock.now += 2.0
        tell("one core", 0.5)
        clock.now += 2.0
        tell("all cores", 0.1)
        clock.now += 2.0
        tell("all cores", 0.2)
        assert bar.is_there
    assert bar.drawn == [
        ("calibrate: one core", 0.5, "50 %", "at most 0:58 left"),
        ("calibrate: all cores", 0.1, "10 %", "at most 0:56 left"),
        ("calibrate: all cores", 0.2, "20 %", "at most 0:54 left"),
    ]
    assert not bar.is_there


def test_what_follows_a_count_has_no_known_length(clock, bar):
    with Progress(ticking=False) as shown:
        report = shown.count("planning", then="building")
        report(1, 4)
        clock.now += 4.0
        report(2, 4)
        report(4, 4)
        clock.now += 2.0
        shown._draw(clock.now)
    assert bar.drawn == [("planning", 0.5, "2 of 4", "0:04 left"), ("building", None, "", "0:02 so far")]


def test_compilation_comes_before_what_waits_for_it(clock, bar):
    with Progress(ticking=False) as shown:
        report = shown.search()
        shown._show_compilation(0, 8, 0.0)
        clock.now += 4.0
        shown._show_compilation(2, 8, 0.5)
        shown._draw(clock.now)
        shown._show_compilation(3, 3, None)
        clock.now += 10.0
        shown._show_compilation(3, 8, 0.6)
        shown._draw(clock.now)
        shown._show_compilation(4, 4, None)
        report(0.7)
    assert [(what, done, left) for what, _, done, left in bar.drawn] == [
        ("compiling the analytical model (once)", "2 of 8", "0:04 left"),
        ("compiling the analytical model (once)", "3 of 8", "0:03 left"),
        ("searching", "70 %", "0:06 left"),
    ]


def test_a_line_is_taken_away_for_an_answer(clock, bar):
    with Progress(ticking=False) as shown:
        report = shown.search()
        report(0.1)
        clock.now += 2.0
        report(0.2)
        assert bar.is_there
        shown.clear()
        assert not bar.is_there


@pytest.mark.parametrize(("term", "is_one"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_is_none(monkeypatch, term, is_one):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert progress.is_terminal() is is_one


def test_lines_that_stay_are_written_above_what_is_drawn(monkeypatch, capsys):
    written = []
    monkeypatch.setattr(Progress, "print_above", lambda self, line: written.append((self, line)))
    with Progress() as outer, Progress() as inner:
        say("first")
    with outer:
        say("second")
    say("third")
    assert written == [(inner, "first"), (outer, "second")]
    assert capsys.readouterr().err == "third\n"
