"""Inference engines: the order in which they read prompts, and the time that their hosts add to a step."""

from __future__ import annotations

from typing import NamedTuple

from anatune.arguments import check_choice


class Engine(NamedTuple):
    """An inference engine.

    Attributes
    ----------
    title : str
        The name in its own spelling.
    mixes : bool
        Whether an iteration holds prompts beside decoding sequences. Otherwise prompts go first, by themselves.
    host_s : float
        The seconds that the host adds to each step: the only constant that is fitted to servers' times.
    """

    title: str
    mixes: bool
    host_s: float


IDEAL = Engine("an engine without a host", True, 0.0)
ENGINES = {
    "trtllm": Engine("TensorRT-LLM", True, 0.6e-3),
    "vllm": Engine("vLLM", True, 1.9e-3),
    "sglang": Engine("SGLang", False, 0.8e-3),
}
"""Word -> engine. The hosts' seconds were fitted to the odd half of published times of dense models on an H100
(docs/bench/replay.servers.md)."""


def find_engine(name: str | None) -> Engine:
    """Return an engine; without a name, one whose host takes no time.

    Raises
    ------
    SpaceError
        The name is unknown.
    """
    if name is None:
        return IDEAL
    return ENGINES[check_choice("engine", name, tuple(ENGINES))]
