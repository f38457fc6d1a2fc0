"""The template "winograd": 3x3 convolutions by Winograd's minimal filtering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from anatune.core.schedule import Schedule
from anatune.templates.cpu.template import CpuTemplate
from anatune.templates.winograd.rules import LEVELS, check_winograd, convolution_on, needed_accuracy

__all__ = ["WINOGRAD"]


class WinogradTemplate(CpuTemplate):
    """3x3 convolutions of stride 1 by Winograd's transforms F(2x2, 3x3) and F(4x4, 3x3), on CPUs."""

    name = folder = "winograd"
    model_name = "model:WinogradModel"
    joins = True
    option_meanings: ClassVar[Mapping[str, str]] = {
        "unroll": "input channels that the microkernel computes without a loop",
        "output_tile": "rows and columns of results that one transform computes",
        "parallel": "whether a loop is distributed over the cores",
        "split": "the loop that is distributed: over tiles of the image or over output channels",
    }
    all_accuracy = "relaxed"
    is_plain_sum = False
    check = staticmethod(check_winograd)
    factors = LEVELS
    supports = staticmethod(convolution_on)
    accuracy_of = staticmethod(needed_accuracy)

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error that rounding explains, relative to the scale of the result."""
        from anatune.templates.winograd.space import largest_error

        return largest_error(schedule)


WINOGRAD = WinogradTemplate()
