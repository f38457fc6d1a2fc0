"""Names that the Tab key knows."""

from types import SimpleNamespace

from anatune.cli import completion
from anatune.errors import SpecError
from anatune.search.base import STRATEGIES


def test_devices_have_aliases_and_host():
    assert completion.device_names("host") == ["host", "host_gpu"]
    assert {"a100", "a100_sxm"} <= set(completion.device_names("a100"))
    assert completion.device_names("no such") == []


def test_a_broken_spec_of_the_users_leaves_the_rest_of_completion(monkeypatch):
    def fail():
        raise SpecError("mine.toml: no")

    monkeypatch.setattr("anatune.core.hardware.files.list_hardware", fail)
    assert completion.device_names("") == ["host", "host_gpu"]


def test_workloads_begin_with_an_operator_or_a_layer():
    first = SimpleNamespace(params={})
    assert completion.layer_and_operator_names(first, "resnet18:C1") == [
        f"resnet18:C{n}" for n in ("1", "10", "11", "12")
    ]
    assert "conv2d" in completion.layer_and_operator_names(first, "")
    assert completion.layer_and_operator_names(SimpleNamespace(params={"words": ["matmul"]}), "") == []


def test_strategies_and_templates():
    assert completion.strategy_names("") == [*STRATEGIES]
    assert completion.template_names("pipe") == ["pipelined"]
