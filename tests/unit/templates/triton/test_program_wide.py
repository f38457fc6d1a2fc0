"""Tensors of more than 2**31 elements are addressed in 64 bits, others in 32."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.workload.access import Access, Axis, Term
from anatune.core.workload.nest import Workload
from anatune.measure.emulate.triton_process import run_program
from anatune.measure.run.process import Reply, Worker
from anatune.templates.triton.program import TritonProgram, triton_program

ROW = 2**26
"""Elements between rows of A, of which 32 are read."""


def far_product() -> TritonProgram:
    axes = (Axis("i", 64, "spatial"), Axis("j", 32, "spatial"), Axis("k", 32, "reduction"))
    i, j, k = ((Term(axis.name),) for axis in axes)
    workload = Workload(
        operator="far",
        axes=axes,
        reads=(Access("A", "float16", (64, ROW), (i, k), (0, 0)), Access("B", "float16", (32, 32), (k, j), (0, 0))),
        write=Access("C", "float16", (64, 32), (i, j), (0, 0)),
        body="multiply_add",
        flop_per_point=2,
    )
    space = anatune.space(workload, anatune.hardware("h100"), template="triton")
    return triton_program(space.schedule({"m": 32, "n": 32, "k": 16}))


def run_far(folder: str, program: TritonProgram) -> tuple[np.ndarray, np.ndarray]:
    """Run it in the interpreter's process, on a file with holes; return its result, and the right one."""
    rows = np.memmap(Path(folder) / "A", np.float16, "w+", shape=(64, ROW))
    rows[:, :32] = np.random.default_rng(0).integers(-4, 5, (64, 32))
    columns = np.random.default_rng(1).integers(-4, 5, (32, 32)).astype(np.float16)
    return run_program(program, {"A": rows, "B": columns})["C"], rows[:, :32].astype(np.float32) @ columns


def answer(folder: Path, program: TritonProgram) -> Reply:
    worker = Worker("interpreter", environment={"TRITON_INTERPRET": "1"})
    try:
        worker.submit(f"{__name__}:run_far", {"folder": str(folder), "program": program}, 60.0)
        return worker.wait(120.0)
    finally:
        worker.kill()


def test_small_tensors_have_addresses_of_32_bits() -> None:
    workload = anatune.matmul(4096, 4096, 4096, dtype="float16")
    space = anatune.space(workload, anatune.hardware("h100"), template="triton")
    assert "int64" not in triton_program(space.schedule({})).source


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_far_elements_are_reached(tmp_path: Path) -> None:
    program = far_product()
    reply = answer(tmp_path, program)
    assert reply.kind == "value", reply.message
    computed, right = reply.value  # type: ignore[misc]
    assert (computed == right).all()
    narrow = msgspec.structs.replace(program, source=program.source.replace(".to(tl.int64)", ""))
    assert "A is read at element -2147483648" in answer(tmp_path, narrow).message
