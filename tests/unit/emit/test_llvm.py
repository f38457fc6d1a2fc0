"""Frames of functions with vectors on the stack, for processors that are not here, too."""

import re

import pytest

import anatune

pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen.compat import compile_module
from anatune.codegen.cpu.lower import assembly_facts, lower

SPILL = re.compile(r"%([yz])mm.*?(-?\d*)\(%rsp\)|(-?\d*)\(%rsp\).*?%([yz])mm")


def spilling(hardware):
    """A schedule whose tile needs 40 accumulators."""
    lanes = hardware.fp32_lanes
    workload = anatune.matmul(40, 4 * lanes, 32)
    tiles = {"i": (2, 1, 1, 1, 20), "j": (1, 1, 1, 2, 2 * lanes), "k": (1, 1, 32, 1)}
    return anatune.space(workload, hardware).schedule(tiles=tiles, parallel=True)


@pytest.mark.parametrize(("threads", "function"), [(1, "main_compute_"), (2, ".L__tvm_parallel_lambda")])
@pytest.mark.parametrize(("name", "alignment"), [("amd_ryzen_9950x", 64), ("amd_ryzen_3700x", 32)])
def test_spilled_vectors_lie_in_one_line_each(name, alignment, threads, function):
    lowered = lower(spilling(anatune.hardware(name)), threads=threads)
    assembly = compile_module(lowered.module, lowered.target).mod.inspect_source("asm")
    assert assembly_facts(assembly)["spill_ops"] > 20
    text = assembly[assembly.index(f"\n{function}:") :]
    text = text[: text.index(".Lfunc_end")]
    assert f"andq\t$-{alignment}, %rsp" in text
    places = {found[1] or found[2] for found in SPILL.findall(text)}
    assert len(places) > 5
    assert all(int(place or 0) % alignment == 0 for place in places)


def test_frames_that_the_caller_aligns_are_left_alone():
    lowered = lower(spilling(anatune.hardware("aws_graviton3")))
    assert "alloca" not in lowered.program.llvm
