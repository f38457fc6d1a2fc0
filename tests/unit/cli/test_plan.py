"""``anatune plan`` ends in what to do next: commands that are right as they stand."""

import shlex

import pytest

from anatune.cli import main


def said(capsys, words):
    assert main.main(words.split()) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--hw rtx4090 matmul 32x32x32 --dtype float16", ""),
        ("--hw mi300x matmul 32x32x32 --template triton --accuracy relaxed", " --template triton --accuracy relaxed"),
        ("--hw epyc_7763 matmul 32x32x32 --threads 2", " --threads 2"),
    ],
)
def test_a_plan_ends_in_what_to_do_next(capsys, words, options):
    *_, why, export, tune = said(capsys, f"plan --top-k 1 {words}")
    hw, workload = words.split()[1], " ".join(words.split()[2:4])
    dtype = " --dtype float16" if "float16" in words else ""
    assert "--explain" in why
    assert export == f"  write its kernel: anatune export --hw {hw}{options} {workload}{dtype}"
    assert tune.endswith(f": anatune tune --hw {hw}{options} {workload}{dtype}")


def test_the_command_that_it_names_writes_the_kernel(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (line,) = [one for one in said(capsys, "plan --hw h100 matmul 32x32x32 --dtype float16") if "export" in one]
    assert main.main([*shlex.split(line.partition("anatune ")[2]), "--format", "py"]) == 0
    assert list(tmp_path.glob("*.py"))


def test_a_plan_that_export_would_not_make_is_exported_as_it_is(capsys, monkeypatch, tmp_path):
    words = "plan --hw rtx3090 matmul 32x32x32 --plain --top-k 1"
    assert "  write its kernel: --json > plan.json, then anatune export plan.json" in said(capsys, words)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text("".join(said(capsys, f"{words} --json")))
    pytest.importorskip("tvm")
    assert main.main(["export", "plan.json", "--format", "tvm"]) == 0


def test_what_cannot_be_written_is_not_offered(capsys):
    lines = said(capsys, "plan --hw mi300x --explain --top-k 1 matmul 32x32x32")
    assert "no kernel of this plan can be generated" in " ".join(lines)
    assert not [line for line in lines if "anatune export" in line]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "rtx4090 matmul 32,64x32x32",
            "next: add --json > range.json to this command, then `anatune export range.json`",
        ),
        ("rtx4090 matmul 32,64x32x32 --dtype float16", "next: add --json > range.json to this command, then"),
        ("mi300x matmul 32,64x32x32 --dtype float16", "next: add --json > range.json to this command, then"),
        ("mi300x matmul 32,64x32x32", "no kernel of this plan can be generated"),
    ],
)
def test_a_plan_for_a_range_does_so_too(capsys, words, told):
    assert told in " ".join(said(capsys, f"plan --hw {words}"))
