"""A real browser that opens pages: Debian's Chromium, driven by Playwright.

Every page that a test opens is watched: an error in its console, a script that raises or a request that leaves the file
fails the test.
"""

import pytest

from bench.pictures import BROWSERS, browser_options


@pytest.fixture(scope="module")
def browser():
    """Return a browser; skip where none is installed.

    One a module: as long as Playwright is there an event loop of asyncio runs in this thread, and no other can.
    """
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
    options = browser_options()
    if options is None:
        pytest.skip(f"no browser is installed ({', '.join(BROWSERS)}): apt-get install chromium")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(**options)
        yield started
        started.close()


@pytest.fixture
def open_page(browser):
    """Open a page's file and wait until it is drawn."""
    contexts, complaints = [], []

    def opened(path):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: complaints.append(asked.url) if leaves(asked.url, path) else None)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not complaints


def leaves(url, path):
    """Return whether a request is for anything but the page itself or what it holds."""
    return url.partition("#")[0] != path.as_uri() and not url.startswith(("blob:", "data:"))
