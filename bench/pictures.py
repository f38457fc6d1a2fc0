"""Pictures of pages for README and docs: what a browser shows of them.

    python -m bench.pictures docs/pictures

writes ``roofline.png``, of the page of a matrix product on an RTX 3090, and ``models.png``: whole models beside other
engines, drawn from the table of `bench.models_cpu` in docs/bench/models_cpu.md. Needs the extra ``report``,
Playwright and a Chromium of the system's (``apt-get install chromium``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import anatune
from anatune.model.plan import Plan
from anatune.pages import Figure, Page, Section, plan_page
from anatune.plots.theme import BEST, COLOURS, GREY, new_figure

WIDTH = 1180
"""Pixels of the window."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser_options() -> dict[str, Any] | None:
    """Return how Playwright starts the system's Chromium, None where none is installed."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        return None
    # a browser of root's has no sandbox; /dev/shm is small in containers
    return {
        "executable_path": path,
        "args": ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])],
    }


TABLE = Path(__file__).parents[1] / "docs" / "bench" / "models_cpu.md"
_HEAD = "| network | anatune | tuned |"
"""The head of the table of whole networks on one thread."""
_RIVALS = {"OpenVINO": COLOURS[1], "ONNX Runtime": COLOURS[0], "Inductor": COLOURS[2], "eager": GREY}
_IN_WORDS = {"Inductor": "PyTorch Inductor", "eager": "PyTorch eager"}


def model_times(text: str) -> dict[str, dict[str, float]]:
    """Return model -> column -> ms of the table of whole networks in docs/bench/models_cpu.md; of "over" the ratio.

    Parameters
    ----------
    text : str
        Of that file.
    """
    lines = text[text.index(_HEAD) :].split("\n\n", 1)[0].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {
        name: dict(zip(head[1:], (float(cell.rstrip("?")) for cell in cells), strict=True)) for name, *cells in rows
    }


def plot_models(times: dict[str, dict[str, float]]) -> Any:
    """Return a figure of whole models: the time of a run with each engine over anatune's."""
    figure = new_figure(
        "Whole models: time of a run over anatune's (one thread of an Intel Emerald Rapids, batch 1, float32)",
        "", "times anatune's time (less is faster)", height=430,
    )  # fmt: skip
    names = list(times)
    for engine, colour in _RIVALS.items():
        ratios = [times[name][engine] / times[name]["anatune"] for name in names]
        figure.add_bar(
            x=names, y=ratios, name=_IN_WORDS.get(engine, engine), marker={"color": colour},
            text=[f"{ratio:.1f}" for ratio in ratios], textposition="outside", cliponaxis=False,
        )  # fmt: skip
    figure.add_scatter(
        x=[-0.5, len(names) - 0.5], y=[1.0, 1.0], xaxis="x2", mode="lines", name="anatune, nothing tuned",
        line={"color": BEST, "width": 3},
    )  # fmt: skip
    figure.update_layout(
        barmode="group", bargap=0.2, xaxis2={"overlaying": "x", "range": [-0.5, len(names) - 0.5], "visible": False},
        uniformtext={"minsize": 9, "mode": "show"},
    )  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    return figure


def take(browser: Any, plan: Plan, path: Path) -> None:
    """Write a picture of the first figure of a plan's page: its roofline."""
    take_first(browser, plan_page(plan, what_if_s=0.0), path)


def take_first(browser: Any, shown: Page, path: Path) -> None:
    """Write a picture of a page's first figure."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        shown.write(file)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(file.as_uri(), timeout=120_000)
        page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=120_000)
        page.locator("figure").first.screenshot(path=path)
        page.close()


def main() -> None:
    """Write the pictures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    options = browser_options()
    if options is None:
        parser.error(f"no browser is installed ({', '.join(BROWSERS)}): apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    plan = anatune.plan(anatune.matmul(512, 4096, 1024), "rtx3090", 64, distinct=True)  # that of README
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**options)
        take(browser, plan, folder / "roofline.png")
        models = Section("Models", [], [Figure(plot_models(model_times(TABLE.read_text(encoding="utf-8"))))])
        take_first(browser, Page("Whole models", [models]), folder / "models.png")
        browser.close()
    for path in (folder / "roofline.png", folder / "models.png"):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
