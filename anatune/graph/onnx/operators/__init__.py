"""What each operator of ONNX means in operators of graphs, by families."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.graph.onnx.call import Convert
from anatune.graph.onnx.operators import elements, pools, products, reductions

__all__ = ["READERS"]

READERS: Mapping[str, Convert] = {
    **elements.READERS,
    **pools.READERS,
    **products.READERS,
    **reductions.READERS,
}
"""Operator -> what reads it; the domain does not matter."""
