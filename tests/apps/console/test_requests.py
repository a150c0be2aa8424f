"""Requests to the console without a browser: access, forms, headers, assets, live figures."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import pytest

from penstock.testing import Broker
from tests.apps.console.example import ERRORS, PAGES, example_broker, fill
from tests.apps.console.visitor import guarded_broker
from tests.broker.security.secured import PASSWORD, users_file
from tests.security.access import allow

FIRST_PAINT_BYTES_MAX = 60 * 1024


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(
    url: str,
    path: str,
    fields: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request, a POST if it has `fields` of a form."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    sent = {"accept": "text/html", **(headers or {})}
    body = None
    if fields is not None:
        body = urlencode(fields)
        sent = {"content-type": "application/x-www-form-urlencoded", **sent}
    try:
        connection.request("GET" if fields is None else "POST", path, body, sent)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()


def proof(page: Answer) -> str:
    """Return the token of a page's form."""
    found = re.search(r'name="proof" value="([^"]+)"', page.text)
    assert found is not None
    return found.group(1)


def basic(user: str) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(f"{user}:{PASSWORD}".encode()).decode()}


# Access


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Broker with ACLs, whose user alice may use `orders` and the group `billing`."""
    directory = tmp_path_factory.mktemp("console")
    settings = {
        "super.users": "User:ANONYMOUS;User:root",
        "listener.name.admin.sasl.enabled.mechanisms": "PLAIN",
    }
    users = ("alice", "bob", "root")
    with guarded_broker(directory, settings, users=users, data=directory / "data") as broker:
        fill(broker)
        with broker.client() as client:
            for operation in ("describe", "read", "delete"):
                client.create_acls([allow(operation, "topic", "orders", "alice")])
                client.create_acls([allow(operation, "group", "billing", "alice")])
        yield broker


def test_topics_and_groups_that_the_caller_may_not_describe_are_hidden(guarded: Broker) -> None:
    url = guarded.admin_url
    topics = ask(url, "/console/topics", headers=basic("alice")).text
    assert "orders" in topics
    assert "payments" not in topics
    assert ask(url, "/console/topics/payments", headers=basic("alice")).status == 403
    groups = ask(url, "/console/groups", headers=basic("alice")).text
    assert "billing" in groups
    assert "reports" not in groups
    assert ask(url, "/console/groups/reports", headers=basic("alice")).status == 403
    assert "No topic matches" in ask(url, "/console/topics", headers=basic("bob")).text
    assert "payments" in ask(url, "/console/topics", headers=basic("root")).text


def test_the_positions_of_a_group_in_hidden_topics_are_hidden(guarded: Broker) -> None:
    with guarded.client() as client:
        client.commit_offsets("billing", {("payments", 1): 7})
    try:
        shown = ask(guarded.admin_url, "/console/groups/billing", headers=basic("alice")).text
        assert "orders" in shown
        assert "payments" not in shown
        form = "/console/group-reset/billing?to=earliest"
        assert "payments" not in ask(guarded.admin_url, form, headers=basic("alice")).text
    finally:
        with guarded.client() as client:
            client.delete_offsets("billing", [("payments", 1)])


def test_acts_that_the_caller_may_not_do_are_refused_and_audited(
    guarded: Broker, tmp_path: Path
) -> None:
    url = guarded.admin_url
    token = proof(ask(url, "/console/create-topic", headers=basic("alice")))
    answer = ask(url, "/console/create-topic", {"proof": token, "name": "new"}, basic("alice"))
    assert answer.status == 403
    assert "User:alice may not create topic new" in answer.text.replace("&#39;", "'")
    answer = ask(
        url, "/console/topics/orders/configs", {"proof": token, "name": "retention.ms"},
        basic("alice"),
    )  # fmt: skip
    assert answer.status == 403
    guarded.restart()  # writes the audit log to its end
    lines = (guarded.directory.parent / "audit.log").read_text().splitlines()
    denials = [event for line in lines if (event := json.loads(line))["event"] == "denial"]
    assert {(event["principal"], event["operation"]) for event in denials} >= {
        ("User:alice", "CreateTopics"),
        ("User:alice", "POST /console/topics/orders/configs"),
    }
    assert all(event["address"] == "127.0.0.1" for event in denials)


def test_what_the_caller_may_not_do_is_not_offered(guarded: Broker) -> None:
    page = ask(guarded.admin_url, "/console/topics/orders", headers=basic("alice")).text
    assert "/console/topics/orders/delete" in page
    assert "/console/topics/orders/partitions" not in page
    assert (
        "Create topic" not in ask(guarded.admin_url, "/console/topics", headers=basic("bob")).text
    )


def test_a_caller_without_credentials_is_asked_for_them(tmp_path: Path) -> None:
    settings = {
        "authorizer.class.name": "acls",
        "super.users": "User:root",
        "admin.basic.loopback": True,
        "sasl.users.file": users_file(tmp_path, "root", "bob"),
    }
    with Broker(settings) as broker:
        refused = ask(broker.admin_url, "/console")
        assert refused.status == 401
        assert "Basic" in refused.headers["www-authenticate"]
        assert ask(broker.admin_url, "/console/sign-in").status == 401
        assert ask(broker.admin_url, "/console", headers=basic("bob")).status == 403
        assert ask(broker.admin_url, "/console", headers=basic("root")).status == 200
        signed_in = ask(broker.admin_url, "/console/sign-in", headers=basic("root"))
        assert (signed_in.status, signed_in.headers["location"]) == (303, "/console")
        assert "User:root" in ask(broker.admin_url, "/console", headers=basic("root")).text


# Forms


def test_forms_of_other_sites_are_refused(url: str, broker: Broker) -> None:
    token = proof(ask(url, "/console/topics/audit/delete"))
    fields = {"proof": token, "confirm": "audit"}
    path = "/console/topics/audit/delete"
    for headers in (
        {"origin": "https://other.example"},
        {"origin": "null"},
        {"host": "other.example"},
    ):
        assert ask(url, path, fields, headers).status == 400
    for wrong in ("", "x", token[:-8] + "AAAAAAA=", proof(ask(url, path)).swapcase()):
        refused = ask(url, path, {**fields, "proof": wrong}, {"origin": url})
        assert refused.status == 403
        assert "the form is not from this console" in refused.text
    with broker.client() as client:
        assert "audit" in {topic.name for topic in client.list_topics()}


def test_a_token_belongs_to_one_user(guarded: Broker) -> None:
    path = "/console/group-delete/billing"
    token = proof(ask(guarded.admin_url, path, headers=basic("alice")))
    fields = {"proof": token, "confirm": "nothing"}
    assert ask(guarded.admin_url, path, fields, basic("root")).status == 403
    assert ask(guarded.admin_url, path, fields, basic("alice")).status == 400


def test_a_read_only_console_offers_and_accepts_no_changes() -> None:
    with example_broker({"console.read.only": True}) as broker:
        pages = {name: ask(broker.admin_url, path) for name, path in PAGES.items()}
        refused = ask(broker.admin_url, "/console/topics/orders/delete", {"confirm": "orders"})
        with broker.client() as client:
            assert "orders" in {topic.name for topic in client.list_topics()}
    assert refused.status == 403
    assert "read-only" in refused.text
    assert [name for name, page in pages.items() if page.status != 200] == [*ERRORS]
    for mark in ('method="post"', 'class="button quiet danger"'):
        assert [name for name, page in pages.items() if mark in page.text] == []
    acts = ("Register a schema", "Add entries", "Create a user", "Set quotas", "Save plan")
    for name in ("schemas", "access", "users", "quotas", "plan-choose"):
        assert not any(act in pages[name].text for act in acts), name


def test_a_disabled_console_has_no_pages() -> None:
    with Broker({"console.enable": False}) as broker:
        assert ask(broker.admin_url, "/console").status == 404
        assert ask(broker.admin_url, "/").status == 404


# Responses


@pytest.mark.parametrize("accept", ["text/html", "*/*"])
def test_the_root_leads_to_the_console(url: str, accept: str) -> None:
    answer = ask(url, "/", headers={"accept": accept})
    assert (answer.status, answer.headers["location"]) == (303, "/console")


@pytest.mark.parametrize("path", ["/console", "/console/topics/missing", "/console/nothing"])
def test_pages_and_errors_have_the_security_headers(url: str, path: str) -> None:
    headers = ask(url, path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


def test_the_first_page_is_small_and_its_assets_are_cached(url: str) -> None:
    accepted = {"accept-encoding": "gzip"}
    page = ask(url, "/console", headers=accepted)
    text = gzip.decompress(page.body).decode()
    paths = re.findall(r'(?:src|href)="(/console/assets/[^"]+)"', text)
    assert len(paths) >= 4
    assets = [ask(url, path, headers=accepted) for path in paths]
    assert all("immutable" in asset.headers["cache-control"] for asset in assets)
    assert len(page.body) + sum(len(asset.body) for asset in assets) <= FIRST_PAINT_BYTES_MAX
    assert "https://" not in text
    assert "http://" not in text
    digest = paths[0].split("/")[3]
    assert ask(url, paths[0].replace(digest, "0" * len(digest))).status == 404


def test_unknown_parameters_are_refused(url: str) -> None:
    answer = ask(url, "/console/topics?colour=red")
    assert answer.status == 400
    assert "unknown parameter" in answer.text


def test_a_group_may_have_any_name(url: str, broker: Broker) -> None:
    for name in ("a/b?c#d", "ümlaut & more", "%2e%2e/x"):
        with broker.client() as client:
            client.commit_offsets(name, {("orders", 0): 1})
        assert ask(url, f"/console/groups/{quote(name, safe='')}").status == 200
        with broker.client() as client:
            client.delete_group(name)


def test_the_first_page_imports_no_arrays() -> None:
    """They take 0.15 s, for which the first page would wait."""
    code = (
        "import sys, penstock.apps.console.pages.application\n"
        "print([name for name in ('numpy', 'pyarrow', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Live figures


def test_live_figures_are_events_with_samples(url: str) -> None:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    connection.request("GET", "/console/live")
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = iter(response.readline, b"")
    line = next(line for line in lines if line.startswith(b"data: "))
    event = json.loads(line.removeprefix(b"data: "))
    assert event["sample"]["bytes_in"] >= 0
    assert event["texts"]["requests"].endswith("/s")
    connection.close()


def test_the_number_of_browsers_with_live_figures_is_limited() -> None:
    with Broker({"admin.max.connections": 8}) as broker:
        place = urlsplit(broker.admin_url)
        connections = []
        for _ in range(2):
            connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
            connection.request("GET", "/console/live")
            assert connection.getresponse().readline() == b": connected\n"
            connections.append(connection)
        refused = ask(broker.admin_url, "/console/live")
        assert refused.status == 429
        assert "2 browsers already show live figures" in refused.text
        for connection in connections:
            connection.close()
