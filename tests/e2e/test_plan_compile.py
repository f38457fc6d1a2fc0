"""``anatune plan --compile`` from the shell."""

import json

import pytest

pytest.importorskip("tvm", reason="code generation needs apache-tvm")
pytest.importorskip("cuda.bindings.nvrtc", reason="compiling CUDA C needs cuda-bindings")

WORDS = ("plan", "--hw", "rtx3090", "--top-k", "3", "--compile", "2", "matmul", "32x64x48")


def test_text(anatune):
    done = anatune(*WORDS)
    assert done.returncode == 0, done.stderr
    assert "after compilation" in done.stdout
    assert "Compiled the 2 different kernels" in done.stdout
    assert "Traceback" not in done.stderr


def test_json(anatune):
    done = anatune(*WORDS, "--json")
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    compilation = tree["compilation"]
    assert compilation["num_compiled"] == len(compilation["programs"]) == 2
    assert len(tree["schedules"]) == 3
    assert compilation["compiler"].startswith("NVRTC")
    assert compilation["text"][0].startswith("Compiled the 2 different kernels")
    first = next(program for program in compilation["programs"] if program["after"]["rank"] == 1)
    assert tree["schedules"][0]["tiles"] == first["tiles"]
    assert tree["schedules"][0]["prediction"]["resources"]["registers_per_thread"] == first["compiler"]["registers"]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("--hw", "mi50", "--compile", "2"), 1, "expected an NVIDIA one"),
        (("--hw", "k80", "--compile", "2"), 1, "arch sm_37 is unknown to this compiler"),
        (("--hw", "ryzen_7950x", "--compile", "2"), 1, "compile is for GPUs"),
        (("--hw", "rtx3090", "--compile", "-1"), 2, "expected a number >= 0, got '-1'"),
        (("--hw", "rtx3090", "--compile", "many"), 2, "valid integer"),
        (("--hw", "rtx3090", "--compile", "1000000"), 1, "compile is 1000000"),
    ],
)
def test_bad_input(anatune, words, status, text):
    done = anatune("plan", *words, "matmul", "32x64x48")
    assert done.returncode == status
    assert text in done.stderr
    assert done.stdout == ""
    assert len([line for line in done.stderr.splitlines() if line.startswith("error")]) == 1
