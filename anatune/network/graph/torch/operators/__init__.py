"""Readers of PyTorch's core operators, by family: each returns the operators of the graph that replace a node."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.network.graph.torch.call import Convert
from anatune.network.graph.torch.operators import elements, indices, quantised, recurrent, reductions, shapes, windows

__all__ = ["READERS"]

READERS: Mapping[str, Convert] = {
    **elements.READERS,
    **indices.READERS,
    **quantised.READERS,
    **recurrent.READERS,
    **reductions.READERS,
    **shapes.READERS,
    **windows.READERS,
}
"""Operator without its overload -> reader."""
