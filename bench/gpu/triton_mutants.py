"""Triton modules with one fault put into their text: what a check of correctness must find.

Faults that change nothing are left out: groups of tiles that are in order however they are walked, parts of sums that
have no steps, masks of operands beyond which other elements lie.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import msgspec

from anatune.templates.triton.program import TritonProgram

__all__ = ["mutants"]


def mutants(program: TritonProgram) -> Iterator[tuple[str, TritonProgram]]:
    """Yield (what was done, program)."""
    source = program.source
    numbers = {name: int(value) for name, value in re.findall(r"^(\w+) = tl\.constexpr\((-?\d+)\)$", source, re.M)}
    for what, text in _texts(source, numbers):
        assert text != source, what
        yield what, msgspec.structs.replace(program, source=text)


def _texts(source: str, numbers: dict[str, int]) -> Iterator[tuple[str, str]]:
    if "order_ptr" in source or "weight_scales_ptr" in source:
        yield from _scales(source, numbers)
        return
    yield from _indices(source, numbers)
    yield from _steps(source)
    yield from _sums(source, numbers)


def _each(what: str, pattern: str, replacement: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield the text with one match of a pattern replaced, for each match."""
    for match in re.finditer(pattern, source, re.M):
        yield what, source[: match.start()] + match.expand(replacement) + source[match.end() :]


def _indices(source: str, numbers: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield faults of addresses, masks and the order of tiles."""
    for name in numbers:
        if name.startswith("STRIDE_"):
            yield (
                "a stride",
                re.sub(rf"^{name} = .*$", f"{name} = tl.constexpr({numbers[name] + 1})", source, flags=re.M),
            )
    strides = [name for name in numbers if name.startswith("STRIDE_")]
    for first, second in itertools.pairwise(strides):
        if first.split("_")[1] == second.split("_")[1] and numbers[first] != numbers[second]:
            text = re.sub(rf"^{first} = .*$", f"{first} = tl.constexpr({numbers[second]})", source, flags=re.M)
            yield (
                "two strides swapped",
                re.sub(rf"^{second} = .*$", f"{second} = tl.constexpr({numbers[first]})", text, flags=re.M),
            )
    yield from _each("a mask that is too narrow", r"(\] < [MN])\)", r"\1 - 1)", source)
    yield from _each("a mask that is too narrow", r"(mask=\w+ < [MN])\)", r"\1 - 1)", source)
    yield from _each("a mask that is too narrow", r"(< K - first_k)\)", r"\1 - 1)", source)
    yield from _each("no mask", r"(tl\.store\((?:.*|\n.*,\n.*)),\s+mask=[^=\n]*\)$", r"\1)", source)
    if not re.search(r"^ +[mnk]_\w+ = ", source, re.M):
        yield from _each("no mask", r",\s+mask=[^=\n]*,\s+other=0\.0,?\s*\)", ")", source)
    position = r"((?:place|row|step)\d_\w+(?:\[[^\]]*\])? )"
    yield from _each("no padding", position + r">= 0\)", r"\1>= -1000000)", source)
    yield from _each("no padding", position + r"< \d+\)", r"\1< 1000000)", source)
    yield from _each("a tile's rows", r"(_tiles\.load\(\[(?:batch, )?first_\w+)", r"\1 + 1", source)
    yield from _each("a tile's place", r"(_tiles\.store\(\[(?:batch, )?first_\w+)", r"\1 + 1", source)
    tiles_m, tiles_n = numbers.get("TILES_M", 1), numbers.get("TILES_N", 1)
    if "TILES_N" in numbers and numbers["TILES_N"] > 1:
        yield from _each("the order of tiles", r"% TILES_N \* BLOCK_N", r"% (TILES_N - 1) * BLOCK_N", source)
    if tiles_m > 1 and "TILES_M * BLOCK_M" in source:
        yield from _each("the order of tiles", r"% TILES_M \* BLOCK_M", r"% (TILES_M - 1) * BLOCK_M", source)
    if tiles_n > 1 or tiles_m > numbers.get("GROUP_M", 1):
        yield from _each("the order of groups", r"// \(GROUP_M \* TILES_N\)$", r"// (GROUP_M * TILES_N + 1)", source)
    if tiles_n > 1:
        rows = r"tl\.minimum\(TILES_M - group \* GROUP_M, GROUP_M\)"
        yield from _each("the rows of the last group", rows, "GROUP_M", source)


def _steps(source: str) -> Iterator[tuple[str, str]]:
    """Yield faults of fused steps."""
    yield from _each("no bias", r"^ +sums \+= (bias_tile.*|tl\.load\(bias.*)$\n", "", source)
    yield from _each("no residual", r"^ +sums \+= (residual_tile.*|tl\.load\(residual.*)$\n", "", source)
    yield from _each("no activation", r"^ +sums = (?!tl\.dot|tl\.zeros|tl\.load).*$\n", "", source)


def _sums(source: str, numbers: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield faults of the loop over k, and of what is summed."""
    block = numbers["BLOCK_K"]
    depth = numbers["K"] if "K" in numbers else numbers["PART_K"] * numbers["SPLIT_K"]
    yield from _each("no last step of k", r"range\(0, K, BLOCK_K\)", "range(0, K - BLOCK_K, BLOCK_K)", source)
    yield from _each("no first step of k", r"range\(0, K, BLOCK_K\)", "range(BLOCK_K, K, BLOCK_K)", source)
    yield from _each("no first step of k", r"range\(first_part, ", "range(first_part + BLOCK_K, ", source)
    if numbers.get("PART_K", depth) > block and depth > block:
        yield from _each(
            "sums that are forgotten", r"tl\.dot\(left, right, sums", "tl.dot(left, right, sums * 0", source
        )
    if depth > block:
        yield from _each("a part of the sums", r"static_range\(1, SPLIT_K\)", "static_range(2, SPLIT_K)", source)
    yield from _each("no rounding to tf32", 'input_precision="tf32"', 'input_precision="ieee"', source)


def _scales(source: str, numbers: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield faults of products with scales and of experts."""
    yield from _each("no scale", r"^ +sums \*= .*$\n", "", source)
    yield from _each("no scale", r" \* (?:data_scale\[:, None\]|weight_scale(?:\[None, :\])?)", "", source)
    yield from _each("no scale", r"^ +weight = weight \* scales.*$\n", "", source)
    for name in ("RUN", "SIDE"):
        if numbers.get("K", 0) > max(numbers.get(name, 0), numbers["BLOCK_K"]):
            yield from _each("a scale of the first step", rf"first_k // {name}\b", "0", source)
    yield from _each("halves of a byte", r"weight & 15, weight >> 4", "weight >> 4, weight & 15", source)
    yield from _each("a zero point", r"(- )8$", r"\g<1>7", source)
    yield from _each("a zero point", r"^ +weight = weight - zeros.*$\n", "", source)
    rows = "row < M|place < end|" if numbers.get("M", 2) > 1 else ""  # the only row is the first one, as others are
    yield from _each("a mask that is too narrow", rf"\b({rows}(?:col|pair) < COLUMNS)\b", r"\1 - 1", source)
    yield from _each("an expert's first row", r"starts \+ \(", "starts + 1 + (", source)
    yield from _each(
        "an expert's weights", r"^ +weight_ptr \+= .*$\n", "", source if numbers.get("EXPERTS", 0) > 1 else ""
    )
    yield from _each("the token of a row", r"row // TOP_K", "row", source)
    yield from _each(
        "gate and up", r"gate / \(1\.0 \+ tl\.exp\(-gate\)\) \* up", "up / (1.0 + tl.exp(-up)) * gate", source
    )
    yield from _each("a tile's rows", r"(_tiles\.load\(\[first_\w+)", r"\1 + 1", source)
    if numbers.get("TILES_N", 1) > 1:
        yield from _each("the order of tiles", r"% TILES_N \* BLOCK_N", r"% (TILES_N - 1) * BLOCK_N", source)
    yield from _each("no first step of k", r"range\(0, K, BLOCK_K\)", "range(BLOCK_K, K, BLOCK_K)", source)
