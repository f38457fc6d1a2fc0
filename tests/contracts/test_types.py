"""What type checkers see of the package: the same names as Python, and their types."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import anatune
from anatune.named import entries

PACKAGE = Path(anatune.__file__).parent
README = PACKAGE.parent / "README.md"

GOOD = """
import numpy as np

import anatune
from anatune import CpuSpace, GpuSpace, GpuSpec, Guarantee, HardwareLike, PipelinedSpace, Subset, Trial, Verdict


def first(hw: HardwareLike) -> anatune.Schedule:
    workload: anatune.Workload = anatune.conv2d(1, 64, 56, 56, 64, 3, 3, padding=1)
    plan: anatune.Plan = anatune.plan(workload, hw, top_k=3, template="pipelined")
    guarantee: Guarantee = plan.guarantee
    print(guarantee.gap, plan.predictions[0].time_s, plan.best.tiles["oc"][0])
    return plan.best


def spaces(workload: anatune.Workload) -> tuple[GpuSpace | CpuSpace, PipelinedSpace]:
    return anatune.space(workload, "a100"), anatune.space(workload, "a100", template="pipelined")


def verdict(subset: Subset, schedule: anatune.Schedule) -> Verdict:
    return subset.explain(schedule)


def clock(spec: GpuSpec) -> float:
    return spec.compute.clock_hz


def times(result: anatune.TuningResult) -> list[float | None]:
    trials: list[Trial] = result.trials
    return [trial.measurement.time_s for trial in trials]


array = np.zeros((8, 8), np.float32)
kernel: anatune.Kernel | anatune.GpuKernel = anatune.build(first("host"))
print(kernel(array, array).shape, anatune.inspect(first("host"))["registers"] + 1)
kernel.random_call()()
"""

BAD = """
import anatune

workload = anatune.matmul(512, 4096, 1024)
anatune.nonexistent("a")  # wrong
anatune.matmul("512", 4096, 1024)  # wrong
plan = anatune.plan(workload, "rtx3090")
anatune.plan("matmul", "rtx3090")  # wrong
anatune.plan(workload, 3090)  # wrong
anatune.plan(workload, "rtx3090", topk=3)  # wrong
plan.bset  # wrong
number: int = plan.guarantee  # wrong
anatune.tune(workload, "host", trials="8")  # wrong
anatune.prune(workload, "rtx3090").num_kept + ""  # wrong
for trial in anatune.tune(workload, "host").trials:
    print(trial.measurement.times)  # wrong
"""
WRONG = [line for line, text in enumerate(BAD.splitlines(), start=1) if text.endswith("# wrong")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("types")
    programs = [dedent(text) for text in re.findall(r"^ *```python\n(.*?)^ *```", README.read_text(), re.M | re.S)]
    assert programs[0].startswith("import anatune")
    (folder / "readme.py").write_text("".join(programs))
    (folder / "good.py").write_text(GOOD)
    (folder / "bad.py").write_text(BAD)
    return folder


def run(folder, *command):
    done = subprocess.run(
        [sys.executable, *command, "readme.py", "good.py", "bad.py"],
        cwd=folder, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_mypy_sees_public_types_and_users_mistakes(files):
    pytest.importorskip("mypy")
    out = run(files, "-m", "mypy", "--config-file=", "--cache-dir=cache", "--disallow-any-expr", "--no-error-summary")
    errors = re.findall(r"^(\w+)\.py:(\d+): error", out, re.MULTILINE)
    assert {name for name, _ in errors} == {"bad"}, out
    assert sorted({int(line) for _, line in errors}) == WRONG, out


@pytest.mark.slow
def test_pyright_sees_public_types_and_users_mistakes(files):
    pytest.importorskip("basedpyright")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(PACKAGE.parent)], "reportUnusedExpression": False}
    (files / "pyrightconfig.json").write_text(json.dumps(settings))
    out = json.loads(run(files, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"))
    errors = [(Path(one["file"]).stem, one["range"]["start"]["line"] + 1) for one in out["generalDiagnostics"]]
    assert {name for name, _ in errors} == {"bad"}, errors
    assert sorted({line for _, line in errors}) == WRONG, errors


def test_checkers_and_python_see_the_same_names():
    (seen,) = (node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    imports = [node for node in seen.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(seen.body)
    assert all(alias.asname == alias.name for node in imports for alias in node.names)  # said to be public
    visible = {alias.name: node.module for node in imports for alias in node.names}
    calls = {name: value.partition(":")[0] for name, value in entries("calls").items()}
    assert visible == anatune._MODULE | calls
    assert sorted([*visible, "__version__"]) == anatune.__all__


def test_importing_the_package_loads_nothing():
    code = "import sys, anatune; print(sorted(name for name in sys.modules if name.split('.')[0] in %r))"
    heavy = ["numba", "numpy", "pandas", "scipy", "tvm", "typer", "rich", "msgspec", "lightgbm"]
    done = subprocess.run([sys.executable, "-c", code % heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
