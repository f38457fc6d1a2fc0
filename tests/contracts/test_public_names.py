"""What anatune promised its users still holds: names, parameters, defaults, commands and options.

`public_names.py` says what counts and writes the lists anew.
"""

import pytest
from packaging.version import Version

import anatune

pytest.importorskip("griffe", reason="the public interface is read by griffelib (extra dev)")

from tests.contracts import public_names
from tests.contracts.public_names import broken_calls, broken_commands, command_lines, kept, public_functions, stubs

WRITE = "python -m tests.contracts.public_names --write"
MEANT = f"""
Keep the former name or form working, with a warning (anatune/deprecation.py), and say so in CHANGELOG.md under
Deprecated. Where that cannot be (CONTRIBUTING.md, Versions): say so under Changed or Removed, then {WRITE}"""
LISTED = f"something public is new, or has another type: say so in CHANGELOG.md, then {WRITE}"


@pytest.fixture(scope="module")
def present():
    return stubs()


def test_what_callers_rely_on_is_still_there(present):
    promised = kept()
    assert "anatune.pyi" in promised
    broken = [
        f"{name.removesuffix('.pyi')} {text}"
        for name, before in promised.items()
        for text in broken_calls(before, present.get(name, ""))
    ]
    assert not broken, "this breaks callers: " + "; ".join(broken) + MEANT


def test_what_scripts_rely_on_is_still_there():
    promised = (public_names.FOLDER / public_names.COMMANDS).read_text().splitlines()
    broken = broken_commands(promised, command_lines())
    assert not broken, "this breaks scripts, gone or changed: " + "; ".join(broken) + MEANT
    assert promised == command_lines(), LISTED


def test_what_is_new_is_listed(present):
    assert kept() == present, LISTED


def test_nothing_outlives_the_version_it_goes_in():
    going = {name: value.__goes_in__ for name, value in public_functions() if hasattr(value, "__goes_in__")}
    assert {"anatune.plan", "anatune.tune"} <= set(going)  # former keywords
    late = [name for name, until in going.items() if Version(anatune.__version__) >= Version(until)]
    assert not late, "these were to go by this version (anatune/deprecation.py): " + ", ".join(late)


BEFORE = """
def plan(workload: Workload, hw: str, *, top_k: int = 10) -> Plan: ...

class Plan:
    best: Schedule
    def explain(self) -> str: ...
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("top_k: int = 10", "top_k: int = 20"), ["plan(top_k): parameter default was changed: 10 -> 20"]),
        (("*, top_k: int = 10", "*, top: int = 10"), ["plan(top_k): parameter was removed"]),
        (("hw: str, *,", "*, hw: str,"), ["plan(hw): parameter kind was changed"]),
        (("hw: str, *,", "hw: str, *, seed: int,"), ["plan: parameter was added as required"]),
        (("def explain(self)", "def tell(self)"), ["Plan.explain: public object was removed"]),
        (("    best: Schedule\n", ""), ["Plan.best: public object was removed"]),
        (("top_k: int = 10", "top_k: int = 10, seed: int = 0"), []),
        (("class Plan:", "class Space: ...\n\nclass Plan:"), []),
    ],
)
def test_changes_that_break_callers_are_told(change, said):
    assert BEFORE.replace(*change) != BEFORE
    found = broken_calls(BEFORE, BEFORE.replace(*change))
    assert [text[: len(want)] for text, want in zip(found, said, strict=True)] == said


def test_a_module_that_went_breaks_all_its_callers():
    assert broken_calls(BEFORE, "") == ["plan: public object was removed", "Plan: public object was removed"]


def test_changes_that_break_scripts_are_told():
    before = ["anatune plan", "anatune plan --hw NAME: required", "anatune plan --top-k K: default 10"]
    after = ["anatune plan", "anatune plan --hw NAME: required", "anatune plan --top-k K: default 5"]
    assert broken_commands(before, after) == ["anatune plan --top-k K: default 10"]
    assert broken_commands(before, [*before, "anatune doctor"]) == []
