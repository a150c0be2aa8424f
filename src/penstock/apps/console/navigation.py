"""Navigation of the console: the pages in its menu, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.broker.admin.access import CONSOLE
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from penstock.broker.admin.access import Caller


class Item(Struct, frozen=True, kw_only=True):
    """Item of the menu.

    `name` names its page and its icon in `icons.html`. `key` is pressed after `g` to open the page.
    `operation` is the operation on the cluster that the page requires. `beside` are beginnings of
    the paths of further pages that belong to the item.
    """

    name: str
    key: str
    operation: str = ""
    beside: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.name.capitalize()

    @property
    def path(self) -> str:
        return CONSOLE if self.name == "overview" else f"{CONSOLE}/{self.name}"

    def is_shown(self, caller: Caller | None) -> bool:
        if not self.operation or caller is None:
            return True
        return caller.rights.allows(self.operation, "cluster", CLUSTER)

    def matched(self, path: str) -> int:
        """Return the length of the longest of the item's paths with which `path` begins."""
        starts = (self.path, *(f"{CONSOLE}/{start}" for start in self.beside))
        return max((len(start) for start in starts if path.startswith(start)), default=0)


ITEMS: Final = (
    Item(name="overview", key="o"),
    Item(name="topics", key="t", beside=("create-topic",)),
    Item(name="groups", key="g", beside=("group-",)),
    Item(name="queues", key="u"),
    Item(name="transactions", key="x", beside=("transaction-",)),
    Item(name="schemas", key="s", beside=("schema-",)),
    Item(name="pipelines", key="l"),
    Item(name="hosts", key="h", operation="describe"),
    Item(name="outboxes", key="f", operation="describe"),
    Item(name="diskless", key="d", operation="describe"),
    Item(name="brokers", key="b", operation="describe", beside=("reassignments",)),
    Item(name="access", key="a", operation="describe", beside=("acl-", "user")),
    Item(name="quotas", key="q", operation="describe_configs", beside=("quota-",)),
    Item(name="planner", key="p", operation="describe"),
)


def current(path: str) -> Item:
    """Return the item to which the page at `path` belongs."""
    return max(ITEMS, key=lambda item: item.matched(path))
