"""Two tiers of tests, and what each test takes of the processor.

Tests with the marker ``slow`` are the second tier: ``pytest`` leaves them out, ``pytest -m "slow or not slow"`` runs
all. ``--cpu-seconds 50`` says at the end how many tests and processor seconds each tier has, and which tests take the
most. Unlike the seconds of ``--durations``, these are about the same on a busy machine.
"""

from __future__ import annotations

import resource
from collections.abc import Generator, Iterable
from typing import Any

import pytest

_BEFORE = pytest.StashKey[float]()
_NAME = "cpu_s"


def slow_from(count: int, values: Iterable[Any]) -> list[Any]:
    """Return values of a parameter: the first `count` are in the fast tier, all others in the slow one."""
    return [
        value if place < count else pytest.param(*_parts(value), marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]


def _parts(value: Any) -> tuple[Any, ...]:
    """Return what `pytest.param` takes: a tuple is one value for each parameter's name."""
    return value if isinstance(value, tuple) else (value,)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-seconds", type=int, default=0, metavar="N", help="show tiers and the N tests with most processor seconds"
    )


def processor_s() -> float:
    """Return processor seconds of this process and of those it started that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    item.stash[_BEFORE] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    if call.when == "teardown":  # the last report of a test; pytest-xdist's workers send it to the process that prints
        item.user_properties.append((_NAME, round(processor_s() - item.stash[_BEFORE], 3)))
    return (yield)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    shown = terminalreporter.config.getoption("--cpu-seconds")
    if not shown:
        return
    tests: dict[str, tuple[bool, float]] = {}
    for report in (one for reports in terminalreporter.stats.values() for one in reports if hasattr(one, "keywords")):
        seconds = dict(getattr(report, "user_properties", ())).get(_NAME)
        if seconds is not None:
            tests[report.nodeid] = "slow" in report.keywords, seconds
    terminalreporter.write_sep("=", f"processor seconds of the {shown} tests that take the most")
    for name in sorted(tests, key=lambda name: -tests[name][1])[:shown]:
        terminalreporter.write_line(f"{tests[name][1]:8.2f}  {'slow  ' if tests[name][0] else ''}{name}")
    for is_slow, words in ((False, "fast tier (pytest)"), (True, "slow tier (only with -m 'slow or not slow')")):
        times = [seconds for slow, seconds in tests.values() if slow == is_slow]
        terminalreporter.write_line(f"{words}: {len(times)} tests, {sum(times):.0f} processor seconds")
