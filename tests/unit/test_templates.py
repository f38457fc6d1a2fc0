"""Accuracy: who asks for the standard one gets no tf32, from no call and no command; who gets it is told."""

import json

import pytest

import anatune
from anatune.cli import main
from anatune.errors import SpaceError
from anatune.templates import check_accuracy, get_template
from anatune.tuning.manifest import build_manifest
from tests.wording import refuses

WORK = anatune.matmul(32, 32, 32)
ROUNDED = [("rtx4090", "triton"), ("mi300x", "triton"), ("h100", "triton")]
MESSAGE = "rounds float32 operands of matmul to tf32, which needs accuracy relaxed, got standard"


@pytest.mark.parametrize(("hw", "template"), ROUNDED)
def test_calls_refuse_tf32_at_the_accuracy_standard(hw, template):
    with refuses(SpaceError):
        anatune.plan(WORK, hw, 1, template=template, accuracy="standard")
    with refuses(SpaceError):
        anatune.prune(WORK, hw, 3, template=template, accuracy="standard")
    for accuracy in (None, "relaxed"):
        assert anatune.plan(WORK, hw, 1, template=template, accuracy=accuracy).best.template == template
    assert anatune.plan(WORK, hw, 1, accuracy="standard").best.template != "triton"


def test_kernels_are_not_built_for_a_manifest(tmp_path):
    with refuses(SpaceError):
        build_manifest(WORK, anatune.hardware("rtx4090"), tmp_path, template="triton", accuracy="standard")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("template", ["cuda", "triton", "thin", "pipelined"])
def test_what_is_multiplied_as_it_is_is_admitted(template):
    halves = anatune.matmul(32, 32, 32, dtype="float16")
    check_accuracy(halves, get_template(template), "standard")
    check_accuracy(WORK, get_template(template), None)
    check_accuracy(WORK, get_template(template), "relaxed")


@pytest.mark.parametrize("command", ["plan", "prune --keep 2", "tune --build-only k", "export"])
@pytest.mark.parametrize(("hw", "template"), ROUNDED[:2])
def test_commands_refuse_tf32_at_the_accuracy_standard(capsys, monkeypatch, tmp_path, command, hw, template):
    monkeypatch.chdir(tmp_path)
    if hw == "mi300x" and command.startswith("tune"):
        pytest.skip("kernels that are measured elsewhere are NVIDIA's only")
    words = f"{command} --hw {hw} matmul 32x32x32 --template {template} --accuracy standard"
    assert main.main(words.split()) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: template {template} {MESSAGE}; name accuracy relaxed (--accuracy relaxed)")
    assert (captured.err.count("\n"), captured.out) == (1, "")


@pytest.mark.parametrize("command", ["plan", "prune --keep 2"])
def test_commands_say_that_float32_is_rounded(capsys, command):
    assert main.main(f"{command} --hw rtx4090 matmul 32x32x32 --template triton".split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "template: triton, which rounds float32 to tf32 (--accuracy standard refuses that)" in said


def test_a_file_with_such_a_schedule_is_not_exported_either(capsys, tmp_path):
    schedule = anatune.plan(WORK, "rtx4090", 1, template="triton").best
    (tmp_path / "best.json").write_text(schedule.to_json())
    words = ["export", str(tmp_path / "best.json"), "--output", str(tmp_path / "out"), "--format", "py"]
    assert main.main([*words, "--accuracy", "standard"]) == 1
    assert MESSAGE in capsys.readouterr().err
    assert main.main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("note: Arithmetic: float32 operands, rounded to tf32")
    assert json.loads(captured.out)["arithmetic"]["multiplied_as"] == "tf32"


def test_a_range_is_not_planned_at_the_accuracy_relaxed(capsys):
    assert main.main(["plan", "--hw", "rtx4090", "matmul", "1..4x8x8", "--accuracy", "relaxed"]) == 2
    assert capsys.readouterr().err.startswith("error: --accuracy relaxed ")
