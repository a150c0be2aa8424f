"""Pictures of every page of the console, in both themes and at two widths.

`make screenshots` writes them to `.cache/screenshots`. A broker with examples and some load serves
the pages, and Debian's Chromium shows them. The run fails if a page reports an error to the
browser's log. Arguments select pages by name.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from playwright.sync_api import Browser

from penstock.testing import Broker

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.apps.console.example import ERRORS, PAGES, example_broker  # noqa: E402
from tests.chromium import chromium  # noqa: E402

PLACE: Final = ROOT / ".cache" / "screenshots"
WIDTHS: Final = (360, 1440)
THEMES: Final = ("light", "dark")
LOAD_PAUSE_SECONDS: Final = 0.1


def main(names: list[str]) -> int:
    if not names:
        shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    pages = {name: path for name, path in PAGES.items() if not names or name in names}
    with example_broker() as broker, load(broker), chromium() as browser:
        errors = [
            error
            for width in WIDTHS
            for theme in THEMES
            for error in taken(browser, broker.admin_url, pages, width, theme)
        ]
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{len(list(PLACE.iterdir()))} pictures are in {PLACE}")
    return 1 if errors else 0


@contextmanager
def load(broker: Broker) -> Iterator[None]:
    """Write and read records in a thread, so that the charts have lines."""
    ends, table = threading.Event(), pa.table({"value": [b"x" * 500] * 200})

    def run() -> None:
        with broker.client() as client:
            while not ends.wait(LOAD_PAUSE_SECONDS):
                client.write_arrow("shipments", table)
                client.read_arrow("shipments", max_records=100)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def taken(browser: Browser, url: str, pages: dict[str, str], width: int, theme: str) -> list[str]:
    """Take the pictures of pages; return the errors that they report."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.add_cookies([{"name": "penstock_theme", "value": theme, "url": f"{url}/console"}])
    errors: list[str] = []
    for name, path in pages.items():
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        if name not in ERRORS:
            page.on(
                "console",
                lambda message: errors.append(message.text) if message.type == "error" else None,
            )
        page.goto(f"{url}{path}", wait_until="load")
        if page.locator("[data-live-state]").count():
            page.get_by_text("Live, updated").wait_for()
        page.screenshot(path=PLACE / f"{name}-{theme}-{width}.png", full_page=True)
        page.close()
    context.close()
    return [f"{theme}, {width} px: {error}" for error in errors]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
