"""Every program of examples/ runs, from a folder of its own, and prints what it says it shows."""

import ast
import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))
PRINTED = {  # program -> packages that it needs, and what it prints (a pattern)
    "compare_devices": ([], r"h100_sxm .* us +\d+% of peak[\s\S]*\d kernels for 1 to 16 rows lose at most \d"),
    "compile_model": (["tvm", "onnx"], r"layouts of convolutions[\s\S]*\[\[ *-?\d"),
    "cuda_without_gpu": (["tvm", "cuda.bindings"], r"__global__[\s\S]*'registers': \d+[\s\S]*right: True"),
    "explain_schedule": ([], r"shared_bytes_per_block[\s\S]*mine takes 1\.\d+ times as long[\s\S]*Certified: "),
    "plan_matmul": ([], r"(\d+\.\d us  i=.*\n){3}\nguarantee: certified\n[\s\S]*rejected:\n"),
    "prune_any_tuner": ([], r"keep 16 of[\s\S]*left out: predicted "),
    "prune_optuna": (["optuna"], r"'tiles\.i': \d+[\s\S]* us: i="),
    "train_correction": (["lightgbm", "sklearn"], r"it helps: True\n.*rtx3090_cuda"),
    "tune_cpu": (["tvm"], r"0 ok +\d[\s\S]*3 ok[\s\S]*records: example\.sqlite"),
}

OPTIONAL = ("compile_model", "prune_optuna")
"""Examples of optional packages, which are in the slow tier."""


def test_the_table_of_examples_is_whole():
    listed = re.findall(r"^\| `(\w+)\.py` \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [path.stem for path in PROGRAMS] == sorted(PRINTED)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in OPTIONAL else ()) for path in PROGRAMS],
    ids=lambda path: path.stem,
)
def test_an_example_runs(path, tmp_path, monkeypatch, capsys):
    needs, printed = PRINTED[path.stem]
    for package in needs:
        pytest.importorskip(package)
    assert ast.get_docstring(ast.parse(path.read_text()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    assert re.search(printed, out), out
