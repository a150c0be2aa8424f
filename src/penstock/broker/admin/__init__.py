"""The broker's admin HTTP interface: health, metrics, and what the log holds, as JSON."""

from penstock.broker.admin.server import AdminServer

__all__ = ["AdminServer"]
