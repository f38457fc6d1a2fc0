"""What each operator of ONNX means in operators of graphs, by families."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.graph.onnx.call import Convert
from anatune.graph.onnx.operators import attention, elements, pools, products, quantised, recurrent, reductions

__all__ = ["READERS"]

READERS: Mapping[str, Convert] = {
    **attention.READERS,
    **elements.READERS,
    **pools.READERS,
    **products.READERS,
    **quantised.READERS,
    **recurrent.READERS,
    **reductions.READERS,
}
"""Operator -> what reads it; the domain does not matter."""
