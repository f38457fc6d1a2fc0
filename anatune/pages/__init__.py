"""HTML pages of results: one file each, which needs no network (extra ``report``)."""

from anatune.named import entries, load
from anatune.pages.page import Column, Facts, Figure, Page, Section, Slider, Sliders, Table
from anatune.pages.plan import plan_page, prune_page
from anatune.pages.session import records_page, session_page
from anatune.pages.space import space_sections

__all__ = [
    "Column", "Facts", "Figure", "Page", "Section", "Slider", "Sliders", "Table", "plan_page",
    "prune_page", "records_page", "session_page", "space_sections",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in entries("figures"):  # registered by other packages
        return load("figures", name)
    raise AttributeError(f"module 'anatune.pages' has no attribute {name!r}; public names: {', '.join(__all__)}")
