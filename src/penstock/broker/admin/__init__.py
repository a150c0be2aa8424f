"""Admin HTTP interface of the broker: health, metrics, and log contents as JSON."""

from penstock.broker.admin.server import AdminServer

__all__ = ["AdminServer"]
