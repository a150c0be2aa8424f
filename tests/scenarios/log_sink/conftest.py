"""The event loop of the sinks' own tests."""

from __future__ import annotations

from tests.host.sinks.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
