"""How the process behaves: start-up, pipes, interrupts, streams."""

import functools
import json
import os
import signal
import subprocess
import sys

import pytest

import anatune as package
from tests import first_runs

HEAVY = (
    "numba",
    "pandas",
    "scipy",
    "tvm",
    "pycuda",
    "triton",
    "matplotlib",
    "lightgbm",
    "plotly",
    "itables",
    "jinja2",
    "sqlalchemy",
    "psycopg",
    "distributed",
    "cryptography",
    "tornado",
)


def test_imports_load_nothing_heavy(environment):
    modules = ("anatune", "anatune.core.workload.text", "anatune.api", "anatune.cli.main")
    code = f"import importlib, sys\nfor module in {modules}:\n    importlib.import_module(module)\n"
    code += f"    print(module, [name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    assert done.stdout.splitlines() == [f"{module} []" for module in modules]


def test_a_plan_loads_nothing_of_fleets_and_pages(environment):
    words = ["plan", "--hw", "xeon_gold_6230r", "relu", "16x16", "--json"]
    code = f"import sys\nfrom anatune.cli.main import app\ntry:\n    app({words})\nexcept SystemExit as end:\n"
    code += f"    print(end.code, [name for name in {HEAVY[-8:]} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_the_installed_script(new_process):
    done = new_process("--version")
    assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (0, f"anatune {package.__version__}", "")
    done = new_process("hw", "show", "x")
    assert (done.returncode, done.stdout, done.stderr[:7]) == (1, "", "error: ")


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["hw", "--help"], ["hw", "show", "-h"]])
def test_help(anatune, words):
    done = anatune(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: anatune")


def test_python_dash_m(environment):
    done = subprocess.run(
        [sys.executable, "-m", "anatune", "hw", "show", "rtx3090", "--json"],
        capture_output=True,
        timeout=60,
        env=environment,
        check=True,
    )
    assert json.loads(done.stdout)["name"] == "rtx3090"


def test_first_run_says_that_it_compiles(new_process, tmp_path):
    """Of each template's model; in a run with several workers the one that the others wait for."""
    is_ahead = all(first_runs.said(model) for model in ("cpu", "winograd"))
    folder = os.environ["NUMBA_CACHE_DIR"] if is_ahead else str(tmp_path)
    for model in ("cpu", "winograd"):
        run = functools.partial(new_process, *first_runs.WORDS[model], NUMBA_CACHE_DIR=folder)
        first, second = first_runs.said(model) if is_ahead else run(), run()
        (note,) = (line for line in first.stderr.splitlines() if f"the model of {model} kernels (about " in line)
        assert note.startswith("note: compiling ")
        assert f", once: the code is stored in {folder}{os.sep}" in note
        assert not [
            line for line in second.stderr.splitlines() if not line.startswith("searching: ")
        ]  # when it is slow
        assert first.stdout == second.stdout
        assert json.loads(first.stdout)["schedules"]


@pytest.mark.parametrize("model", first_runs.WORDS)
def test_the_words_of_first_runs_are_right(anatune, model):
    """A run that is refused compiles nothing: each worker would do it again in its tests."""
    assert anatune(*first_runs.WORDS[model]).returncode == 0


def test_broken_pipe_is_quiet(script, environment):
    with subprocess.Popen(
        [script, "hw", "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.usefixtures("interruptible")
def test_interrupt_is_one_line(script, environment, tmp_path):
    # The first run compiles for seconds: time enough to be interrupted in the middle.
    with subprocess.Popen(
        [script, "plan", "--hw", "xeon_gold_6230r", "matmul", "512x512x512"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"NUMBA_CACHE_DIR": str(tmp_path)},
    ) as process:
        assert process.stderr.readline().startswith("note: compiling")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")


def test_colour_only_on_a_terminal(anatune):
    assert "\x1b" not in anatune("hw", "list", FORCE_COLOR="1").stdout
