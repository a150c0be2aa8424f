"""Report of a test run: failures and durations, in the file that `PENSTOCK_TEST_REPORT` names.

`scripts/retry_failed.py` reads the failures. Without the variable, no report is written.
"""

from __future__ import annotations

import gc
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.parallel"]


class RunReport:
    """First failure and duration in seconds of each test, of all processes of a run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failures: dict[str, str] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
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
        slowest_first = sorted(self._seconds.items(), key=lambda test: -test[1])
        found = {
            # Other plugins may have changed the status that the session ends with.
            "status": int(session.exitstatus),
            "failures": self._failures,
            "seconds": {test: round(seconds, 3) for test, seconds in slowest_first},
        }
        self._path.write_text(json.dumps(found, indent=1))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without garbage collection: almost all objects of a collection stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get("PENSTOCK_TEST_REPORT")
    if path:
        config.pluginmanager.register(RunReport(Path(path)), "run-report")
