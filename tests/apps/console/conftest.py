"""Console of a broker with examples, and the browser that shows it.

The browser ends with the last test of a module. Its event loop would disturb other modules whose
tests have event loops of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from compat.parts import PartMissing, axe
from playwright.sync_api import Browser, BrowserContext

from penstock.testing import Broker
from tests.apps.console.browsing import Window
from tests.apps.console.example import example_broker
from tests.chromium import chromium
from tests.machine import lacking


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    with example_broker() as broker:
        yield broker


@pytest.fixture(scope="package")
def url(broker: Broker) -> str:
    return broker.admin_url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with chromium() as browser:
            yield browser
    except PartMissing as error:
        lacking(str(error))


@pytest.fixture(scope="package")
def axe_script() -> str:
    try:
        return axe()
    except PartMissing as error:
        lacking(str(error))


@contextmanager
def profile(browser: Browser) -> Iterator[BrowserContext]:
    """Open a new profile of the browser, as wide as a desktop."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    context.set_default_timeout(10_000)
    yield context
    context.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with profile(browser) as context:
        yield context


@pytest.fixture(scope="module")
def shared_window(browser: Browser, url: str) -> Iterator[Window]:
    """Window for tests that only load pages. It loads the assets of the console once."""
    with profile(browser) as context:
        yield Window(context.new_page(), url)


@pytest.fixture
def window(context: BrowserContext, url: str) -> Iterator[Window]:
    """Window on the console, whose pages must report no errors."""
    window = Window(context.new_page(), url)
    yield window
    assert window.errors == []
