"""Waiting for a database that does not answer yet."""

import pytest

from penstock.control.drivers.postgres_connections import when_answering
from penstock.control.values.errors import ControlUnavailable


async def test_the_line_about_a_wait_has_the_last_failure(caplog: pytest.LogCaptureFixture) -> None:
    attempts = 0

    async def attempt() -> int:
        nonlocal attempts
        attempts += 1
        if "waiting for" not in caplog.text:
            raise ControlUnavailable(f"refused {attempts}")
        return attempts

    last = await when_answering(attempt, where="the database", seconds=60.0) - 1
    assert "waiting for the database" in caplog.text
    assert f"; the last attempt: refused {last}" in caplog.text
