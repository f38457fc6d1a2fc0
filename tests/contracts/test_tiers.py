"""Two tiers of tests: what the core guarantees is in the fast one, CI runs both, what takes most is told."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests.tiers import pytest_terminal_summary, slow_from

ROOT = Path(__file__).parents[2]
OPTIONAL = {"adapters", "bench", "export", "fleet", "network", "pages", "plots", "servers"}
SEARCHES = {"search/strategies/test_bayes.py"}
"""How good a search is takes long to say; what searches may ask for is in the fast tier."""


@pytest.mark.skipif(not (ROOT / ".ci/run").is_file(), reason="an installed package has no CI beside it")
def test_ci_runs_both_tiers_and_the_bare_command_the_fast_one():
    options = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["tool"]["pytest"]["ini_options"]["addopts"]
    assert shlex.split(options)[-2:] == ["-m", "not slow"]
    assert '-m "slow or not slow" --durations=50 --cpu-seconds=50' in (ROOT / ".ci/run").read_text()


def test_unit_tests_of_the_core_are_in_the_fast_tier():
    unit = ROOT / "tests" / "unit"
    files = [path for path in unit.rglob("test_*.py") if path.relative_to(unit).parts[0] not in OPTIONAL]
    assert len(files) > 100
    slow = [str(path.relative_to(unit)) for path in files if re.search(r"mark\.slow|slow_from", path.read_text())]
    assert {*slow} == SEARCHES


def test_parameters_behind_the_first_ones_are_slow():
    first, second, third = slow_from(1, ["a", ("b", 2), "c"])
    assert first == "a"
    assert (second.values, third.values) == (("b", 2), ("c",))
    assert [mark.name for one in (second, third) for mark in one.marks] == ["slow", "slow"]


def test_tiers_are_counted_and_what_takes_most_is_shown():
    def report(name, seconds, **keywords):
        return SimpleNamespace(nodeid=name, keywords=keywords, user_properties=[("cpu_s", seconds)])

    lines, called = [], SimpleNamespace(nodeid="a", keywords={}, user_properties=[])  # not yet the last report
    stats = {"passed": [called], "": [report("a", 1.0), report("b", 3.0), report("c", 2.5, slow=1)], "deselected": [0]}
    shown = SimpleNamespace(
        config=SimpleNamespace(getoption=lambda name: 2), stats=stats, write_line=lines.append,
        write_sep=lambda mark, text: lines.append(text),
    )  # fmt: skip
    pytest_terminal_summary(shown)
    assert [line.split()[-1] for line in lines[1:3]] == ["b", "c"]
    assert "slow" in lines[2]
    assert lines[3].endswith("2 tests, 4 processor seconds")
    assert lines[4].endswith("1 tests, 2 processor seconds")
