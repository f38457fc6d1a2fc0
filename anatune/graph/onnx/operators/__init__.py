"""What each operator of ONNX means in operators of graphs, by families."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.graph.onnx.call import Convert
from anatune.graph.onnx.operators import (
    attention,
    constants,
    control,
    determinants,
    elements,
    images,
    moves,
    places,
    pools,
    products,
    quantised,
    recurrent,
    reductions,
    samples,
)

__all__ = ["READERS"]

READERS: Mapping[str, Convert] = {
    **attention.READERS,
    **constants.READERS,
    **control.READERS,
    **determinants.READERS,
    **elements.READERS,
    **images.READERS,
    **moves.READERS,
    **places.READERS,
    **pools.READERS,
    **products.READERS,
    **quantised.READERS,
    **recurrent.READERS,
    **reductions.READERS,
    **samples.READERS,
}
"""Operator -> what reads it; the domain does not matter."""
