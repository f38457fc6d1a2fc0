"""Damaged command lines: an answer, or one line on standard error and exit status 1 or 2; never a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from anatune.cli.main import main

LINES = (
    "plan --hw rtx3090 matmul 16x24x8 --top-k 2",
    "plan --hw t4 matmul 8x8x8 --dtype bfloat16 --json",
    "plan --hw a100 --template tensorcore matmul 32x32x32 --dtype float16 --explain",
    "plan --hw xeon_8124m conv2d 1x2x5x5 4x2x3x3 --padding 1 --stride 2 --top-k 1 --json",
    "plan --hw rtx3090 einsum bij,bjk->bik 2x4x8 2x8x4",
    "prune --hw rtx3090 matmul 8x8x8 --keep 4 --for json --most 3",
    "prune --hw rtx3090 max_pool2d 1x2x8x8 2x2 --keep 0.5 --for csv",
    "hw show rtx3090",
    "hw check nowhere.toml",
    "records list --records nothing.sqlite",
    "export nowhere.json --output out",
    "records import nowhere.log --hw rtx3090",
)
WORDS = [
    *("", "0", "-1", "1", "2147483648", "9" * 30, "1e9", "nan", "x", "0x0x0", "1x1", "3.5", "True", "None", "--", "-h"),
    *("--hw", "--json", "--top-k", "--keep", "--dtype", "int8", "float64", "--template", "cpu", "pipelined", "gpu"),
    *("--time-limit", "--padding", "--layout", "NHWC", "--epilogue", "bias,bias", "naïve\n", "a;b", "{}", "mi50"),
]


def damaged(words: list[str], rng: random.Random) -> list[str]:
    result = list(words)
    for _ in range(rng.choice([1, 1, 2, 3])):
        place = rng.randrange(len(result) + 1)
        kind = rng.choice(["drop", "replace", "insert", "swap", "cut"])
        if kind == "insert" or place >= len(result):
            result.insert(place, rng.choice(WORDS))
        elif kind == "drop":
            del result[place]
        elif kind == "replace":
            result[place] = rng.choice(WORDS)
        elif kind == "swap":
            other = rng.randrange(len(result))
            result[place], result[other] = result[other], result[place]
        else:
            result[place] = result[place][: rng.randrange(len(result[place]) + 1)]
    return result


def check(words: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    status = main(words)
    said = capsys.readouterr()
    assert status in (0, 1, 2), words
    assert "Traceback" not in said.err, words
    if status == 1:
        assert len(said.err.strip().splitlines()) == 1, (words, said.err)
    return status


def test_damaged_command_lines_end_with_an_answer_or_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    statuses = [check(damaged(rng.choice(LINES).split(), rng), capsys) for _ in range(80)]
    assert len(set(statuses)) > 1
