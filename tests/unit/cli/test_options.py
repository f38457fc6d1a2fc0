"""What the commands' options are called, and what their help says."""

import re
import typing

import pytest

from anatune.cli import main, prune
from anatune.cli.records import place
from anatune.core.trial import Outcome
from anatune.listing.writers import list_formats
from anatune.templates import TEMPLATES

WORKLOAD = ("--stride", "--padding", "--layout", "--dtype", "--transpose-a", "--epilogue", "--axes")


def help_of(capsys: pytest.CaptureFixture[str], command: str) -> str:
    assert main.main([*command.split(), "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "command", ["plan", "prune", "tune", "export", *(f"records {one}" for one in ("list", "best", "export", "import"))]
)
def test_options_of_a_workload_are_in_the_help(capsys, command):
    text = help_of(capsys, command)
    assert all(option in text for option in WORKLOAD)


@pytest.mark.parametrize(
    "command", ["tune", *(f"records {one}" for one in ("list", "best", "export", "import", "train"))]
)
def test_record_files_are_named_alike(capsys, command):
    text = help_of(capsys, command)
    assert re.search(r"--records FILE\|URL .*?\[default: tuning.sqlite\]", text)
    assert "[FILE]" not in text


def test_the_template_is_described_once(capsys):
    described = r"--template .*?CPUs: cpu.*?all that apply"
    texts = [re.search(described, help_of(capsys, one))[0] for one in ("plan", "tune", "export")]
    assert len(set(texts)) == 1


def choices(annotation):
    """Return the words of a Literal in an option's annotation."""
    inner = typing.get_args(annotation)[0]
    return typing.get_args(next((one for one in typing.get_args(inner) if typing.get_args(one)), inner))


def test_choices_are_those_of_the_library():
    assert choices(place.OutcomeName) == tuple(outcome.value for outcome in Outcome)
    assert typing.get_args(prune.Form) == list_formats()


def test_the_help_names_every_template(capsys):
    text = help_of(capsys, "plan")
    assert all(re.search(rf"\b{name}\b", text) for name in TEMPLATES)


def test_unknown_templates_are_one_line(capsys):
    assert main.main(["plan", "--hw", "rtx3090", "matmul", "64x64x64", "--template", "gpus"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "'gpus', expected one of cuda, pipelined, thin, triton, cpu" in said


@pytest.mark.parametrize(
    "command", ["tune", "export", "compile", "run", "records export", "records train", "configs vllm", "configs sglang"]
)
def test_output_has_one_letter_everywhere(capsys, command):
    assert "-o, --output " in help_of(capsys, command)
