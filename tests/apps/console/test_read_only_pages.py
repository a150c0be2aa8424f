"""Pages of a read-only console, which have no forms that change something."""

from __future__ import annotations

from tests.apps.console.example import example_broker
from tests.apps.console.example_more import PAGES
from tests.apps.console.visitor import Visitor


def test_no_page_has_a_form_that_changes_something() -> None:
    with example_broker({"console.read.only": True}) as broker:
        visitor = Visitor(broker.admin_url)
        found = {name: visitor.get(path) for name, path in PAGES.items()}
    assert {name: page.status for name, page in found.items() if page.status != 200} == {}
    assert [name for name, page in found.items() if 'method="post"' in page.text] == []
    acts = ("Register a schema", "Add entries", "Create a user", "Set quotas", "Save plan")
    for name in ("schemas", "access", "users", "quotas", "plan-choose"):
        assert not any(act in found[name].words for act in acts), name
