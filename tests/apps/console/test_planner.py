"""Pages of the planner, compared with `penstock plan`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from playwright.sync_api import BrowserContext, expect

from penstock.apps.console.forms import InvalidField
from penstock.apps.console.plans import (
    NAME_CHARS_MAX,
    PLAN_BYTES_MAX,
    PLANS_MAX,
    PlanStore,
    SavedPlan,
    UnknownPlan,
)
from penstock.base.settings import describe
from penstock.planner.capacity import CapacityInputs
from penstock.planner.choosing import Workload
from penstock.planner.cost import CostInputs
from penstock.planner.quantities import format_quantity
from penstock.planner.receive_path import ReceivePathInputs
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.apps.console.browsing import Window
from tests.apps.console.example import HOSTILE
from tests.apps.console.visitor import Visitor, guarded_broker
from tests.security.access import allow

INPUTS = {
    "capacity": CapacityInputs,
    "cost": CostInputs,
    "receive-path": ReceivePathInputs,
    "choose": Workload,
}
GIVEN = {
    "capacity": {"messages-per-second": "2m", "message-bytes": "2KiB", "storage": "diskless"},
    "cost": {"bytes-per-day": "5TB", "retention": "30d"},
    "receive-path": {},
    "choose": {"rate": "200k", "replay": "true"},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with guarded_broker(tmp_path_factory.mktemp("planner")) as broker:
        yield broker


@pytest.fixture(scope="module")
def visitor(guarded: Broker) -> Visitor:
    return Visitor(guarded.admin_url)


@pytest.mark.parametrize("kind", INPUTS)
def test_results_are_those_of_the_command(visitor: Visitor, bare: Run, kind: str) -> None:
    options = [word for name, text in GIVEN[kind].items() for word in (f"--{name}", text)]
    printed = json.loads(bare("plan", kind, *options, "--output", "json").out)
    page = visitor.get(f"/console/planner/{kind}?{urlencode(GIVEN[kind])}")
    assert page.status == 200
    words = page.words
    for figure in printed["figures"]:
        text = format_quantity(figure["value"], figure["unit"])
        row = f"{figure['label']} = {figure['formula']} {figure['source']} {text}"
        assert " ".join(row.split()) in words
    for finding in printed["findings"]:
        assert " ".join(finding["cause"].split()) in words
    drawn = re.findall(r'data-plot="([^"]*)"', page.text)
    assert len(drawn) == len(printed["charts"])


@pytest.mark.parametrize("kind", INPUTS)
def test_every_declared_input_is_a_field(visitor: Visitor, kind: str) -> None:
    page = visitor.get(f"/console/planner/{kind}")
    words = page.words
    for info in describe(INPUTS[kind]):
        assert f'name="{info.name}"' in page.text
        assert " ".join(info.doc.split()) in words


def test_invalid_inputs_are_explained(visitor: Visitor) -> None:
    page = visitor.get("/console/planner/capacity?messages-per-second=many")
    assert page.status == 200
    assert "messages-per-second = 'many': must be a number" in page.message
    assert visitor.get("/console/planner/capacity?nothing=1").status == 400
    assert visitor.get("/console/planner/missing").status == 404
    preset = visitor.get("/console/planner/cost?preset=missing")
    assert preset.status == 400
    assert preset.message.startswith("preset 'missing' must be one of ")


def test_a_published_example_fills_the_defaults(visitor: Visitor, bare: Run) -> None:
    words = ("plan", "cost", "--preset", "outbox-article", "--output", "json")
    printed = json.loads(bare(*words).out)
    page = visitor.get("/console/planner/cost?preset=outbox-article")
    [cheapest] = [
        figure for figure in printed["figures"] if figure["name"] == printed["answers"][0]
    ]
    assert f"{cheapest['label']} {cheapest['value']}" in page.words
    assert "Default: 100 TB/day." in page.words
    assert "no (default)" in page.words
    assert "False (default)" not in page.words


def test_the_plan_of_keys_reads_the_topic(guarded: Broker, visitor: Visitor, bare: Run) -> None:
    with guarded.client() as client:
        client.create_topic("keyed", 4)
        keys = [b"hot" if row % 3 else b"%d" % row for row in range(6_000)]
        client.write_arrow("keyed", pa.table({"key": keys, "value": [b"x" * 50] * 6_000}))
    words = ("-b", guarded.bootstrap, "plan", "keys", "keyed", "--output", "json")
    printed = json.loads(bare(*words).out)
    page = visitor.get("/console/planner/keys?topic=keyed").words
    for figure in printed["figures"]:
        assert format_quantity(figure["value"], figure["unit"]) in page
        assert " ".join(figure["label"].split()) in page
    assert visitor.get("/console/planner/keys").message.startswith("name the topic")
    some = visitor.get("/console/planner/keys?topic=keyed&records=600").words
    assert "about the newest 600 offsets" in some
    missing = visitor.get("/console/planner/keys?topic=missing")
    assert "missing" in missing.message
    alice = Visitor(guarded.admin_url, "alice")
    with guarded.client() as client:
        client.create_acls([allow("describe", "cluster", "kafka-cluster", "alice")])
    assert alice.get("/console/planner/keys?topic=keyed").status == 403


def test_plans_are_saved_compared_and_deleted(guarded: Broker, visitor: Visitor) -> None:
    save = "/console/planner/save/capacity"
    for name, rate in (("small", "1000"), (HOSTILE, "5m")):
        page = f"/console/planner/capacity?messages-per-second={rate}"
        fields = {"name": name, "input-messages-per-second": rate}
        done = visitor.post(save, fields, page=page)
        assert done.message == f"The plan was saved as {name}."
        assert done.url.endswith(page)
    files = list((guarded.directory / "console" / "plans").glob("*.json"))
    assert {json.loads(file.read_text())["name"] for file in files} == {"small", HOSTILE}
    listed = visitor.get("/console/planner")
    assert HOSTILE in listed.words
    assert "<img" not in listed.text
    both = visitor.get(f"/console/planner/compare?{urlencode({'a': 'small', 'b': HOSTILE})}")
    assert "messages-per-second 1,000 messages/s 5,000,000 messages/s" in both.words
    assert re.search(r"brokers [\d,]+ brokers [\d,]+ brokers", both.words)
    assert "<img" not in both.text
    one = visitor.get("/console/planner/compare?a=small&b=small")
    assert one.message == "choose two different plans"
    assert visitor.get("/console/planner/compare?a=small&b=none").status == 404
    delete = "/console/planner/delete/small"
    assert "type 'small' to confirm" in visitor.post(delete, {"confirm": "x"}).message
    assert visitor.post(delete, {"confirm": "small"}).message == "The plan small was deleted."
    assert visitor.get(delete).status == 404


def test_invalid_plans_are_not_saved(guarded: Broker, visitor: Visitor) -> None:
    plans = guarded.directory / "console" / "plans"
    before = set(plans.glob("*"))
    page, save = "/console/planner/choose", "/console/planner/save/choose"
    wrong = visitor.post(save, {"name": "w", "input-rate": "many"}, page=page)
    assert wrong.status == 400
    unknown = visitor.post(save, {"name": "w", "input-x": "1"}, page=page)
    assert "choose has no input 'x'" in unknown.message
    long = visitor.post(save, {"name": "w" * (NAME_CHARS_MAX + 1)}, page=page)
    assert "must have 1 to 100 characters" in long.message
    assert visitor.post(save.replace("choose", "other"), {"name": "w"}, page=page).status == 404
    assert set(plans.glob("*")) == before


def test_permissions_decide(guarded: Broker) -> None:
    bob = Visitor(guarded.admin_url, "bob")
    assert bob.get("/console/planner").status == 403
    assert bob.get("/console/planner/capacity").status == 403
    with guarded.client() as client:
        client.create_acls([allow("describe", "cluster", "kafka-cluster", "bob")])
    page = bob.get("/console/planner/choose")
    assert page.status == 200
    assert "Save plan" not in page.words
    saving = bob.post("/console/planner/save/choose", {"name": "x"}, page="/console/create-topic")
    assert saving.status == 403


def plan(name: str, **inputs: str) -> SavedPlan:
    return SavedPlan(name=name, kind="choose", inputs=inputs, saved_by="User:x", saved_ms=1)


def test_the_store_has_bounds(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "plans")
    assert store.all() == []
    with pytest.raises(UnknownPlan):
        store.read("a")
    store.save(plan("a"))
    store.save(plan("a", rate="1"))
    assert store.read("a").inputs == {"rate": "1"}
    with pytest.raises(InvalidField, match="the limit is 65536"):
        store.save(plan("b", rate="1" * PLAN_BYTES_MAX))
    for number in range(PLANS_MAX - 1):
        (tmp_path / "plans" / f"{number}.json").write_bytes(b"damaged")
    assert [found.name for found in store.all()] == ["a"]
    store.save(plan("a", rate="2"))
    with pytest.raises(InvalidField, match="1000 plans are saved already"):
        store.save(plan("b"))


def test_the_plan_and_its_plots_follow_the_fields(context: BrowserContext, url: str) -> None:
    window = Window(context.new_page(), url)
    page = window.open("/console/planner/capacity")
    expect(page.locator(".plot canvas")).to_have_count(3)
    answers = page.locator("#plan .figures").first
    before = answers.inner_text()
    page.get_by_label("messages-per-second").fill("3m")
    expect(answers).not_to_have_text(before)
    page.wait_for_url("**/console/planner/capacity?messages-per-second=3m*")
    expect(page.locator(".plot canvas")).to_have_count(3)
    shown = answers.inner_text()
    page.reload()
    expect(answers).to_have_text(shown, use_inner_text=True)
    page.get_by_label("messages-per-second").fill("many")
    expect(page.get_by_role("alert")).to_contain_text("messages-per-second = 'many'")
    page.get_by_label("messages-per-second").fill("1m")
    expect(page.locator(".plot canvas")).to_have_count(3)
    page.locator("[data-theme-switch]").click()
    expect(page.locator(".plot canvas")).to_have_count(3)
    assert window.errors == []
