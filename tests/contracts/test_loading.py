"""Which of our modules a process loads: a CPU's none of GPUs, a plan's none of optional packages."""

import re
import subprocess
import sys

import numpy as np
import pytest

from tests.cases import each

GPU = re.compile(
    r"anatune\.(measure\.(cuda|emulate)|codegen\.(cuda|triton|toolchains)|network\.relax\.(device|gpu_kernels)"
    r"|network\.compiling\.targets\.(gpu|triton|launched|interpreted|device_runner|described|float8|ranks|smaller)"
    r"|templates\.(cuda|gpu|tensorcore|thin|triton))\b"
)
OPTIONAL = re.compile(r"anatune\.(network|servers|fleet|export|adapters|pages|plots)\b")
CPU = re.compile(r"anatune\.(measure\.cpu|codegen\.cpu|templates\.(cpu|scaled|winograd))\b")
MOST_FILES = 285
"""Of ours that compiling a small ONNX model for a CPU loads."""
LOADED = "print(*sorted(name for name in sys.modules if name.split('.')[0] == 'anatune'))"


def loaded(program, tmp_path, monkeypatch):
    """Return our modules that a fresh process has after a program."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\n{LOADED}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def test_compiling_for_a_cpu_loads_nothing_of_gpus(tmp_path, monkeypatch):
    pytest.importorskip("tvm")
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"], axis=-1),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], [weight])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "small.onnx")
    program = f"import anatune\nanatune.compile({str(tmp_path / 'small.onnx')!r}, threads=1)"
    names = loaded(program, tmp_path, monkeypatch)
    assert "anatune.network.compiling.targets.cpu" in names
    assert [name for name in names if GPU.match(name)] == []
    assert "anatune.api" not in names  # kernels are ranked by `model.rank`
    assert len(names) <= MOST_FILES


@each("hw, other", [("xeon_gold_6230r", GPU), ("rtx3090", CPU)])
def test_a_plan_loads_no_other_kind_of_device_and_no_optional_package(hw, other, tmp_path, monkeypatch):
    words = ["plan", "--hw", hw, "relu", "16x16", "--json"]
    call = (
        f"from anatune.cli.main import app\ntry:\n    app({words})\nexcept SystemExit as end:\n    assert not end.code"
    )
    names = loaded(call, tmp_path, monkeypatch)
    assert "anatune.api" in names
    assert [name for name in names if OPTIONAL.match(name)] == []
    assert [name for name in names if other.match(name)] == []
