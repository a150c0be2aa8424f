"""Writes which tests failed, and how, into the file that `PENSTOCK_TEST_REPORT` names, for
`scripts/retry_failed.py`. Does nothing where it is unset."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


class FailureReport:
    """Collects the first failure of each test of a run, of all its processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures.setdefault(report.nodeid, report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failures.setdefault(report.nodeid, report.longreprtext)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int | pytest.ExitCode
    ) -> Iterator[None]:
        yield
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Other plugins may have changed the status that the session ends with.
        found = {"status": int(session.exitstatus), "failures": self._failures}
        self._path.write_text(json.dumps(found))


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get("PENSTOCK_TEST_REPORT")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureReport(Path(path)))
