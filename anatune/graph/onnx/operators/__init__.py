"""What each operator of ONNX means in operators of graphs, by families."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.graph.onnx.call import Convert
from anatune.graph.onnx.operators import (
    constants,
    control,
    determinants,
    elements,
    images,
    moves,
    places,
    reductions,
    samples,
)

__all__ = ["READERS"]

READERS: Mapping[str, Convert] = {
    **elements.READERS,
    **reductions.READERS,
    **moves.READERS,
    **places.READERS,
    **images.READERS,
    **samples.READERS,
    **constants.READERS,
    **control.READERS,
    **determinants.READERS,
}
"""Operator -> what reads it; the domain does not matter."""
