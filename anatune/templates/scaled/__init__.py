"""The template "scaled": products of float32 with 8-bit or 4-bit weights that have scales, on CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from anatune.templates.cpu.template import CpuTemplate
from anatune.templates.scaled.rules import LEVELS, check_scaled, digits_error, needed_accuracy, product_of

__all__ = ["SCALED"]


class ScaledTemplate(CpuTemplate):
    """Products of float32 with 8-bit or 4-bit weights, multiplied as integers, on CPUs."""

    name = folder = "scaled"
    model_name = "model:ScaledModel"
    joins = True
    is_whole = True
    all_accuracy = "relaxed"
    option_meanings: ClassVar[Mapping[str, str]] = {
        "digits": "8-bit or 16-bit integers that stand for one activation",
        "floats": "whether weights are converted to float32 instead",
        "parallel": "whether the columns are distributed over the cores",
    }
    check = staticmethod(check_scaled)
    supports = staticmethod(product_of)
    factors = LEVELS
    accuracy_of = staticmethod(needed_accuracy)
    error_of = staticmethod(digits_error)


SCALED = ScaledTemplate()
