"""Navigation of the console: the pages in its menu, in their order.

A page belongs to the item whose path is the longest beginning of the page's path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from penstock.broker.admin.access import Caller


class Item(Struct, frozen=True, kw_only=True):
    """Item of the menu.

    `key` is pressed after `g` to open the page. `icon` is the name of a macro of `icons.html`.
    `resource_type` is the type of which the caller must be allowed to describe some resource.
    `beside` are beginnings of further paths that belong to the item.
    """

    path: str
    title: str
    key: str
    icon: str
    resource_type: str = ""
    beside: tuple[str, ...] = ()

    def is_shown(self, caller: Caller | None) -> bool:
        if not self.resource_type or caller is None:
            return True
        return caller.rights.allows_some("describe", self.resource_type)


ITEMS: Final = (
    Item(path="/console", title="Overview", key="o", icon="overview"),
    Item(
        path="/console/topics",
        title="Topics",
        key="t",
        icon="topics",
        beside=("/console/create-topic",),
    ),
    Item(
        path="/console/groups",
        title="Groups",
        key="g",
        icon="groups",
        beside=("/console/group",),
    ),
    Item(path="/console/queues", title="Queues", key="u", icon="queues"),
    Item(
        path="/console/transactions",
        title="Transactions",
        key="x",
        icon="transactions",
        beside=("/console/transaction-",),
    ),
    Item(
        path="/console/schemas",
        title="Schemas",
        key="s",
        icon="schemas",
        beside=("/console/schema-",),
    ),
    Item(path="/console/pipelines", title="Pipelines", key="l", icon="pipelines"),
    Item(
        path="/console/diskless",
        title="Diskless",
        key="d",
        icon="objects",
        resource_type="cluster",
    ),
    Item(path="/console/brokers", title="Brokers", key="b", icon="brokers"),
    Item(
        path="/console/access",
        title="Access",
        key="a",
        icon="access",
        resource_type="cluster",
        beside=("/console/acl-", "/console/user"),
    ),
    Item(
        path="/console/quotas",
        title="Quotas",
        key="q",
        icon="quotas",
        resource_type="cluster",
        beside=("/console/quota-",),
    ),
    Item(
        path="/console/planner",
        title="Planner",
        key="p",
        icon="planner",
        resource_type="cluster",
    ),
)


def current(path: str) -> Item | None:
    """Return the item to which the page at `path` belongs."""
    found = [
        (len(start), item)
        for item in ITEMS
        for start in (item.path, *item.beside)
        if path.startswith(start)
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None
