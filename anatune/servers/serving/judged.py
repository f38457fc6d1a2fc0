"""Errors of predictions against the times of servers that others measured."""

from __future__ import annotations

from anatune.servers.serving.config import Decoder

_ERRORS = {"dense": {"h100_sxm": 9}, "experts": {"b200": 15, "h100_sxm": 11, "h200": 22}}
"""Family -> device -> median error of the time per output token, in percent. Source: docs/bench/replay.servers.md."""
NOT_COMPARED = "not compared"


def error_text(decoder: Decoder, hardware: str) -> str:
    """Return the median error of the time per output token that servers of this family had on a device."""
    error = _ERRORS["experts" if decoder.has_experts else "dense"].get(hardware)
    return NOT_COMPARED if error is None else f"{error} %"


def describe_errors() -> str:
    """Return what the errors are."""
    return (
        "error: median error of the time per output token against servers that others measured (TensorRT-LLM, vLLM, "
        "SGLang; docs/bench/replay.servers.md), for this family of models on this device, without --engine. "
        f"{NOT_COMPARED}: there was none to compare with. No server was measured by us."
    )
