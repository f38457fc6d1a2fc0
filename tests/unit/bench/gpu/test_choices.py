"""Predicted beside measured."""

import io

import pytest
from rich.console import Console

import anatune
from bench.gpu.choices import choices_of, print_choices, summaries
from bench.gpu.state import CHOICES, LayerState, State


def entry_of(name, predicted, measured, errors=None, library=None):
    space = anatune.space(anatune.matmul(64, 64, 64, dtype="float16"), "h100_sxm", template="triton")
    entry = LayerState(name, "float16", name, 10**9)
    for choice, told, real in zip(CHOICES, predicted, measured, strict=False):
        entry.schedules[choice] = space.schedule({"m": 64, "n": 64, "k": 64})
        entry.predicted_s[choice] = told
        entry.errors[f"anatune:{choice}"] = 1e-4
        entry.samples.setdefault("flush", {})[f"anatune:{choice}"] = [real] * 3
    if library is not None:
        entry.errors["torch:mm"] = 1e-4
        entry.samples["flush"]["torch:mm"] = [library]
    entry.errors |= errors or {}
    return entry


def state_of(*entries):
    return State("GPU", "sm_90", layers={entry.layer: entry for entry in entries})


def test_what_the_kernels_of_a_dtype_say():
    state = state_of(
        entry_of("L0", (2e-6, 3e-6), (4e-6, 2e-6), library=1e-6),
        entry_of("L1", (9e-6, 9.5e-6), (1e-5, 2e-5), library=1e-5),
        entry_of("L2", (3e-6, 4e-6), (6e-6, 1e-7), {"anatune:choice2": 0.5}),  # the faster is wrong
        entry_of("L3", (3e-6, 4e-6), (6e-6, 6e-6), {"anatune:plan": None}),  # no result: not in any mean
    )
    choices = choices_of(state)
    assert [one.place for one in choices] == [1, 2] * 4
    assert [one.right for one in choices] == [True] * 5 + [False, False, True]
    (found,) = summaries(choices)
    assert (found.layers, found.kernels, found.right) == (4, 8, 6)
    assert found.predicted_over_measured == pytest.approx(0.5)
    assert found.time_error == pytest.approx(0.5)
    assert found.first_over_best == pytest.approx(1.0)
    assert found.first_over_best_90 == pytest.approx(1.8)
    assert found.library_over_first == pytest.approx((0.25 * 1.0) ** 0.5)
    assert found.library_over_best == pytest.approx((0.5 * 1.0) ** 0.5)
    assert found.rho is None
    console = Console(file=io.StringIO(), width=160)
    print_choices(choices, console)
    text = console.file.getvalue()
    assert "1 of 2" in text
    assert "0.50" in text


def test_layers_that_were_only_planned_are_no_choices():
    assert choices_of(state_of(LayerState("M0", "float32", "M0", 1))) == []
    print_choices([], None)
