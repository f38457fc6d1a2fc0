"""Schedules as modules and texts, whatever device they are for."""

import ast
import subprocess
import sys

import pytest

import anatune
from anatune.errors import BuildError
from tests.wording import refuses

HALF = anatune.matmul(256, 256, 256, dtype="float16")
TRITON = """
import sys
sys.modules.update(triton=None, tvm=None)
import anatune
schedule = anatune.plan(anatune.matmul(256, 256, 256, dtype="float16"), "h100", 1, template="triton").best
sys.stdout.write(schedule.source())
"""


def test_triton_source_needs_neither_triton_nor_tvm():
    done = subprocess.run([sys.executable, "-c", TRITON], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    functions = [node for node in ast.parse(done.stdout).body if isinstance(node, ast.FunctionDef)]
    assert functions
    assert "tl.dot(" in done.stdout


def test_source_of_other_templates():
    pytest.importorskip("tvm")
    cuda = anatune.plan(HALF, "rtx3090", 1, template="cuda").best.source()
    assert 'extern "C" __global__ void' in cuda
    script = anatune.plan(anatune.matmul(64, 64, 64), "xeon_gold_6230r", 1, template="cpu").best.source()
    assert "@T.prim_func" in script or "prim_func" in script


def test_there_is_no_tvm_module_of_triton_schedules():
    pytest.importorskip("tvm")
    best = anatune.plan(HALF, "h100", 1, template="triton").best
    with refuses(BuildError):
        best.apply()
