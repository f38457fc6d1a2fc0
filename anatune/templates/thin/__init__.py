"""The template "thin": kernels that stream one large operand."""

from __future__ import annotations

from anatune.templates.gpu.split import SPLIT_MEANINGS
from anatune.templates.gpu.template import GpuTemplate
from anatune.templates.thin.rules import LEVELS, check_supported, check_thin

__all__ = ["THIN"]


class ThinTemplate(GpuTemplate):
    """Products with a vector or few rows, and long reductions: one operand is read once, and threads share its sums."""

    name = folder = "thin"
    model_name = "model:ThinModel"
    writer_name = "program.program:ThinWriter"
    joins = True
    option_meanings = SPLIT_MEANINGS
    check = staticmethod(check_thin)
    factors = LEVELS
    supports = staticmethod(check_supported)


THIN = ThinTemplate()
