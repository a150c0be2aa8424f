"""Admin HTTP interface of the broker: health, metrics, and the state of topics, groups and logs."""

from penstock.broker.admin.server import AdminServer

__all__ = ["AdminServer"]
