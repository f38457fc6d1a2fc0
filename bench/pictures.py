"""Pictures of pages for README and docs: what a browser shows of them.

    python -m bench.pictures docs/pictures

writes ``roofline.png``, of the page of a matrix product on an RTX 3090. Needs the extra ``report``, Playwright and a
Chromium of the system's (``apt-get install chromium``).
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
from anatune.pages import plan_page

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


def take(browser: Any, plan: Plan, path: Path) -> None:
    """Write a picture of the first figure of a plan's page: its roofline."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        plan_page(plan, what_if_s=0.0).write(file)
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
    path = folder / "roofline.png"
    folder.mkdir(parents=True, exist_ok=True)
    plan = anatune.plan(anatune.matmul(512, 4096, 1024), "rtx3090", 64, distinct=True)  # that of README
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**options)
        take(browser, plan, path)
        browser.close()
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
