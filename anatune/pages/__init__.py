"""Answers as pages: one HTML file each that opens without a network (extra ``report``)."""

from anatune.pages.page import Column, Facts, Figure, Page, Section, Slider, Sliders, Table
from anatune.pages.plan import plan_page, prune_page
from anatune.pages.session import records_page, session_page
from anatune.pages.space import space_sections

__all__ = [
    "Column", "Facts", "Figure", "Page", "Section", "Slider", "Sliders", "Table", "plan_page",
    "prune_page", "records_page", "session_page", "space_sections",
]  # fmt: skip
