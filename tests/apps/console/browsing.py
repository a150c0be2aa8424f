"""Window of the browser, for tests of the console's pages."""

from __future__ import annotations

from typing import Any, Final

from playwright.sync_api import Page

SERIOUS: Final = ("serious", "critical")


class Window:
    """Page of the browser that collects the errors which it reports.

    Violations of the content security policy are among them.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))
        page.on("console", self._noted)
        page.on("dialog", self._asked)

    def _noted(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{self.page.url}: {message.text}")

    def _asked(self, dialog: Any) -> None:
        self.errors.append(f"{self.page.url}: opened a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str) -> Page:
        """Load a page of the console, and wait for its scripts."""
        self.page.goto(self.url + path, wait_until="load")
        return self.page

    def overflow_px(self, width: int) -> int:
        """Return by how many pixels the page is wider than a window of this width."""
        self.page.set_viewport_size({"width": width, "height": 900})
        wide: int = self.page.evaluate("document.documentElement.scrollWidth")
        return wide - width

    def faults(self, axe_script: str, *rules: str) -> list[str]:
        """Return the serious and critical faults of accessibility that axe-core finds.

        Without `rules`, all of its rules are applied.
        """
        page = self.page
        if not page.evaluate("'axe' in window"):
            page.evaluate(axe_script)
        options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found: Any = page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{page.url}: {fault['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
            for fault in found["violations"]
            if fault["impact"] in SERIOUS
            for node in fault["nodes"]
        ]
