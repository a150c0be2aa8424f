"""Debian's Chromium for tests of pages: fetched and unpacked once, without being installed.

Playwright drives it. Its own browsers are not used, because they come from another source than the
machine's packages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compat.parts import debian
from playwright.sync_api import Browser, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


def program() -> tuple[Path, dict[str, str]]:
    """Return Chromium's program, and the environment in which it finds its libraries.

    Raises:
        PartMissing: it is neither here nor can be fetched.
    """
    root = debian("chromium")
    libraries = [path for path in (root / "usr" / "lib").glob("*-linux-gnu*") if path.is_dir()]
    places = [*libraries, *(path for path in libraries[0].iterdir() if path.is_dir())]
    found = os.environ.get("LD_LIBRARY_PATH", "")
    path = ":".join([*map(str, places), *([found] if found else [])])
    return root / "usr" / "lib" / "chromium" / "chromium", {**os.environ, "LD_LIBRARY_PATH": path}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium without a window."""
    executable, environment = program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            args=list(FLAGS),
            env={**environment},
            chromium_sandbox=False,
        )
        try:
            yield browser
        finally:
            browser.close()
