"""The page of a running pipeline, over HTTP."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.base.http_page import HttpPage, PageUnavailable
from penstock.spark.pipeline.admin import Run, build_app
from penstock.spark.pipeline.progress import States, described
from tests.spark.pipeline.test_progress import ORDERS, WINDOWS, Script

RUN = Run(
    pipeline="shop",
    file="/x/shop.toml",
    bootstrap="127.0.0.1:9092",
    state_directory="/x/.penstock/shop",
    version="1",
    pid=4711,
    started_ms=5,
    master="local[2]",
)
TIMEOUT_SECONDS = 30


class Page:
    def __init__(self) -> None:
        self.script = Script()
        self.page = HttpPage(build_app(RUN, self.script.states), ("127.0.0.1", 0))
        host, port = self.page.start()
        self.url = f"http://{host}:{port}"

    def get(self, path: str) -> tuple[int, str, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=TIMEOUT_SECONDS) as answer:
                return answer.status, answer.headers["content-type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["content-type"], error.read().decode()

    def json(self, path: str) -> tuple[int, Any]:
        status, kind, body = self.get(path)
        assert kind == "application/json"
        return status, json.loads(body)


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    yield made
    made.page.stop()


def test_status(page: Page) -> None:
    page.script.now = (ORDERS, WINDOWS)
    status, body = page.json("/status")
    assert status == 200
    assert body == {
        "pipeline": "shop",
        "file": "/x/shop.toml",
        "bootstrap": "127.0.0.1:9092",
        "state_directory": "/x/.penstock/shop",
        "version": "1",
        "pid": 4711,
        "started_ms": 5,
        "master": "local[2]",
        "broker_admin": None,
        "dead_letter_topic": None,
        "running": True,
        "queries": [described(ORDERS), described(WINDOWS)],
    }


def test_metrics(page: Page) -> None:
    page.script.now = (ORDERS,)
    status, kind, body = page.get("/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=0.0.4")
    assert 'penstock_pipeline_rows_total{pipeline="shop",query="orders"} 8000.0' in body


@pytest.mark.parametrize(
    ("states", "live", "ready"),
    [
        ((), 200, 503),
        ((ORDERS,), 200, 200),
        ((replace(ORDERS, phase="idle"),), 200, 200),
        ((replace(ORDERS, phase="ended"),), 200, 200),
        ((ORDERS, replace(WINDOWS, phase="starting")), 200, 503),
        ((ORDERS, WINDOWS), 200, 503),
        ((ORDERS, replace(WINDOWS, phase="failed")), 503, 503),
    ],
)
def test_probes(page: Page, states: States, live: int, ready: int) -> None:
    page.script.now = states
    phases = {state.query: state.phase for state in states}
    for path, expected in (("/livez", live), ("/readyz", ready)):
        word = "ok" if expected == 200 else "failing"
        assert page.json(path) == (expected, {"status": word, "queries": phases})


def test_other_paths(page: Page) -> None:
    assert page.get("/nothing")[0] == 404


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        page = HttpPage(build_app(RUN, Script().states), ("127.0.0.1", port))
        with pytest.raises(PageUnavailable, match=f"127.0.0.1:{port}: .*--listen"):
            page.start()
        page.stop()


def test_a_stopped_page_answers_no_more(page: Page) -> None:
    page.page.stop()
    with pytest.raises(urllib.error.URLError):
        page.get("/status")
