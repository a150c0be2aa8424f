"""The broker and the shelf of the outbox's own tests."""

from __future__ import annotations

from tests.outbox.conftest import outbox_broker, shelf

__all__ = ["outbox_broker", "shelf"]
