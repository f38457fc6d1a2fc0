"""README and docs/ as tests read them: pages, their blocks of code, what tests do with each, and commands in them.

A block's language says what it is: ``sh`` commands, ``console`` commands behind ``$ `` with what they print, ``python``
a program or, with others of its page, a part of one; anything else is for reading only. A comment on the line above it,
which readers do not see, says where tests do less than run it as it stands (`Doing`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])

PROGRAM = "# A complete program; needs:"
"""First line of a program that runs in a process of its own; the packages that it needs follow."""

_BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BENCH = re.compile(r"^    (python -m bench\..*)$", re.MULTILINE)
_PROMPT = re.compile(r"^(\w*)\$ (.*)", re.DOTALL)
_SHOWN_LANGUAGES = ("text", "json", "toml", "yaml", "c")


class Doing(Enum):
    """What tests do with a block; the words are the beginning of the comment above it."""

    RUN = ""
    SMALLER = "Tests run this smaller"
    SMALLER_UNCOMPARED = "Output varies; tests run this smaller"
    UNCOMPARED = "Output varies"
    EDITED = "Tests run this without the editor"
    PARSE = "Tests only parse this: "
    INSTALLED = "Tests have this installed"


SMALL = (Doing.SMALLER, Doing.SMALLER_UNCOMPARED)

_SMALLER = (
    ("1x64x56x56", "1x16x8x8"),
    ("64x64x3x3", "16x16x3x3"),
    ("512x1024x1024", "64x48x32"),
    ("512, 1024, 1024", "64, 48, 32"),
    ("256x256x256", "64x64x64"),
    ("256, 256", "64, 64"),
    ("512x4096x1024", "64x64x64"),
    ("1024x1024x1024", "64x64x64"),
    ("1024, 1024", "64, 64"),
    ("128, 128, 128", "16, 16, 16"),
    ("1..8192x4096x4096", "1..24x32x32"),
    ("range(1, 8193)", "range(1, 25)"),
    ("1..512x768x768", "1..24x32x32"),
    ("1..64x128x128x64", "1..8x16x16x16"),
    ("1..64x48x32", "1..8x16x16"),
    ("program_of(197)", "program_of(19)"),
    ("224, 224", "32, 32"),
    ("--compile 64", "--compile 2"),
    ("--time-limit 600", "--time-limit 20"),
)


class Block(NamedTuple):
    """A block of code of a page."""

    page: str
    line: int
    language: str
    remark: str
    text: str

    @property
    def doing(self) -> Doing:
        """What tests do with it."""
        for one in Doing:
            if one is not Doing.RUN and self.remark.startswith(one.value):
                return one
        assert not self.remark, f"{self}: the comment above is none of {[one.value for one in Doing]}"
        return Doing.RUN

    @property
    def tested_text(self) -> str:
        """The text that tests run: with smaller shapes and fewer trials where the comment says so."""
        text = self.text
        if self.doing in SMALL:
            for large, small in _SMALLER:
                text = text.replace(large, small)
            text = re.sub(r"\btrials=\d+", "trials=2", text)
            text = re.sub(r"--trials \d+", "--trials 2", text)
            text = re.sub(r"--trials \d+(.*--resume)", r"--trials 3\1", text)
        return text

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name(page: Path) -> str:
    """Return how a page is called in tests."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Return the blocks of code of a page, in order; those without a language are commands in README.md only.

    A bench in an indented line is a block, too: it takes minutes or hours, so it is only parsed.
    """
    text, found = page.read_text(), []
    for match in _BLOCK.finditer(text):
        remark, language, code = match.groups(default="")
        if not language and page.name == "README.md":
            language = "sh"
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(name(page), line, language, remark, code))
    rest = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for match in _BENCH.finditer(rest):
        line = rest.count("\n", 0, match.start()) + 1
        found.append(Block(name(page), line, "sh", f"{Doing.PARSE.value}a bench", match[1] + "\n"))
    return found


def outside_of_blocks(page: Path) -> str:
    """Return what is left of a page without its blocks."""
    return _BENCH.sub("", _BLOCK.sub("", page.read_text()))


def is_shown_only(block: Block) -> bool:
    """Whether a block is for reading only."""
    return block.language in _SHOWN_LANGUAGES


class Command(NamedTuple):
    """Words of a command, and the file that its output goes to."""

    words: tuple[str, ...]
    into: str | None
    output: str | None
    """What the page shows of its output."""


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block, what follows && apart."""
    for line, output in _lines(block):
        words, into = [], None
        parts = iter(shlex.split(line, comments=True))
        for word in parts:
            if word == "&&":
                yield Command(tuple(words), into, None)
                words, into = [], None
            elif word == ">":
                into = next(parts)
            else:
                words.append(word)
        if words:
            yield Command(tuple(words), into, output)


def _lines(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield command lines and, of a console, the output shown below each."""
    text = block.tested_text.replace("\\\n", " ")
    if block.language == "sh":
        for line in text.splitlines():
            yield line, None
        return
    line, output = "", ""
    for one in text.splitlines(keepends=True):
        prompt = _PROMPT.match(one)
        if prompt is None:
            assert line, f"{block}: output before the first command"
            output += one
            continue
        if line:
            yield line, output
        line, output = prompt[2].rstrip("\n"), ""
    yield line, output


def differs(shown: str, printed: str) -> str:
    """Return what of a page's output is not what was printed, or an empty text; ``...`` stands for anything."""
    pattern = ""
    for line in shown.splitlines():
        words = r".*".join(re.escape(part) for part in line.split("..."))
        pattern += r"(?:.*\n)*?" if line == "..." else words + r"[ ]*\n"
    if re.fullmatch(pattern, printed.rstrip("\n") + "\n"):
        return ""
    return f"the page shows\n{shown}\nprinted was\n{printed}"
