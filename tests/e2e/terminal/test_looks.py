"""What a terminal shows: bars of what takes long, colours where they are wanted, nothing of either elsewhere."""

import json
import re
import subprocess
import sys

import pytest

from tests.e2e.terminal.pseudo import Pseudo, readable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="terminals are looked at as Linux has them")

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def drawn(script, environment, *words, **variables):
    """Return what a command draws in a terminal."""
    with Pseudo([script, *words], environment | variables) as running:
        assert running.end() == 0
        return running.drawn


def test_colours_only_where_they_are_wanted(script, environment):
    words = ("hw", "list")
    assert _STYLE.search(drawn(script, environment, *words))
    assert "\x1b" not in drawn(script, environment, *words, TERM="dumb")
    assert (
        "\x1b"
        not in subprocess.run(
            [script, *words], capture_output=True, text=True, env=environment | {"FORCE_COLOR": "1"}, check=True
        ).stdout
    )
    with Pseudo(["env", "NO_COLOR=1", script, *words], environment) as running:
        assert running.end() == 0
        assert "\x1b" not in running.drawn
        assert "rtx3090" in running.drawn


@pytest.mark.parametrize("words", [("--help",), ("plan", "--help")])
def test_help_has_no_colours(script, environment, words):
    assert "\x1b" not in drawn(script, environment, *words)


def test_a_short_command_draws_no_bar(script, environment):
    assert "\x1b[?25l" not in drawn(script, environment, "hw", "show", "rtx3090")


def test_a_long_search_has_a_bar_and_a_clean_answer(script, environment, tmp_path):
    words = ["plan", "--hw", "xeon_gold_6230r", "conv2d", "64x512x28x28", "512x512x3x3", "--padding", "1"]
    with (tmp_path / "answer").open("wb") as answer:
        limits = ["--time-limit", "4", "--json"]
        with Pseudo(["env", "NO_COLOR=1", script, *words, *limits], environment, answer=answer) as running:
            assert running.end() == 0
            assert re.search(r"[━╸] +searching +(\d+ % )?\d+:\d\d (left|so far)", running.drawn)
            assert not re.search(r"\x1b\[[0-9;]*3[0-9]", running.drawn), "colours in spite of NO_COLOR"
            assert [line for line in readable(running.drawn) if not line.startswith("note: compiling")] == []
    assert json.loads((tmp_path / "answer").read_bytes())["schedules"]
