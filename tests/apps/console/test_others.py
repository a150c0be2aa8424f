"""Pages of pipelines, host agents and outboxes, compared with what these processes report."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from penstock.apps.console import sources
from penstock.apps.console.messages import dead_letters
from penstock.apps.console.outboxes import survey
from penstock.apps.console.sources import Sources, SourceSilent, get_json
from penstock.base.errors import InvalidSetting
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.configuration.settings import CONSOLE_SOURCES_MAX, BrokerSettings
from penstock.outbox.errors import RootUnavailable
from penstock.outbox.layout import data_path, temporary_name
from penstock.spark.pipeline.writing import PREFIX
from penstock.testing import Agent, Broker
from tests.apps.console.browsing import Window
from tests.apps.console.example_others import QUERIES, RULE, RUN, SILENT
from tests.apps.console.visitor import Visitor, guarded_broker
from tests.host.server.test_access import TOKEN, http_rules
from tests.security.access import allow

HOUR_MS = 3_600_000
PATIENCE_SECONDS = 30


# Settings


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("console.pipelines", "10.0.0.1:4040", "10.0.0.1:4040: must have the form http://"),
        ("console.pipelines", "http://h", "http://h: must have the form"),
        ("console.pipelines", "http://h:1/x", "without a path"),
        ("console.pipelines", "http://u@h:1", "must have the form"),
        ("console.pipelines", "http://[::1:1", "must have the form"),
        ("console.pipelines", "http://h:1,http://h:1", "has http://h:1 twice"),
        ("console.host.agents", "host.sock", "host.sock: must have the form"),
        ("console.outboxes", "mnt/outbox", "must have the form /PATH or TOPIC=/PATH"),
        ("console.outboxes", "=/mnt", "must have the form /PATH or TOPIC=/PATH"),
        (
            "console.outboxes",
            ",".join(f"/{number}" for number in range(CONSOLE_SOURCES_MAX + 1)),
            f"must have at most {CONSOLE_SOURCES_MAX} entries",
        ),
    ],
)
def test_invalid_entries_of_settings_are_named(name: str, value: str, told: str) -> None:
    with pytest.raises(InvalidSetting, match=told) as refused:
        load(BrokerSettings, {name: value})
    assert refused.value.name == name


def test_entries_of_settings_keep_their_order() -> None:
    found = load(
        BrokerSettings,
        {
            "console.pipelines": "http://[::1]:4040, https://h:1/",
            "console.host.agents": "/run/host.sock,http://h:1",
            "console.outboxes": "weather=/mnt/a=b,/mnt/c",
        },
    )
    assert found.console_pipelines == ("http://[::1]:4040", "https://h:1/")
    assert found.console_host_agents == ("/run/host.sock", "http://h:1")
    assert found.console_outboxes == ("weather=/mnt/a=b", "/mnt/c")


# Answers


@contextmanager
def answering(content: bytes, *, close: bool = True) -> Iterator[str]:
    """Listen on a free port, and answer each connection with bytes; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.recv(4096)
                connection.sendall(content)
                connections.append(connection)
                if close:
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


def response(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "closed without an answer"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "is not valid HTTP"),
        (response(b"{}")[:-1], "is not valid HTTP: peer closed connection"),
        (response(b"{}", "401 Unauthorized"), "status 401; it needs a token"),
        (response(b"{}", "503 Busy"), "was answered with status 503"),
        (response(b"not JSON"), "has an unexpected form"),
        (response(b'{"a": "text"}'), "has an unexpected form: .*`int`"),
        (response(b" " * (sources.ANSWER_BYTES_MAX + 1)), "is larger than 1,048,576 bytes"),
    ],
)
async def test_unexpected_answers_are_named(content: bytes, told: str) -> None:
    with answering(content) as url, pytest.raises(SourceSilent, match=told):
        await get_json(url, "/status", dict[str, int])


async def test_a_source_that_is_silent_does_not_delay_the_others() -> None:
    async def ask(address: str) -> dict[str, int]:
        return await get_json(address, "/status", dict[str, int])

    with answering(b"", close=False) as silent, answering(response(b'{"a": 1}')) as fine:
        found = Sources((silent, fine, SILENT), ask, SYSTEM_CLOCK, ask_seconds=0.2)
        first, second = await asyncio.gather(found.look(), found.look())
    assert first is second  # the requests shared the answers
    assert [(source.answer, bool(source.trouble)) for source in first.sources] == [
        (None, True),
        ({"a": 1}, False),
        (None, True),
    ]
    assert first.sources[0].trouble == "no answer within 0.2 s"


# Pipelines


def test_a_pipeline_is_shown_with_its_counts(url: str) -> None:
    page = Visitor(url).get("/console/pipelines").words
    assert f"{SILENT} does not answer: " in page
    assert "shop orders running 7 180 ms 5,555.6 12 8,000 7,993 7 7" in page
    page = Visitor(url).get("/console/pipelines/shop").words
    assert (
        f"Read 8,000 Written to lake 7,993 Rejected by undecodable 3 Rejected by {RULE} 4" in page
    )
    assert str(QUERIES[1].error) in page
    assert f"File {RUN.file}" in page
    assert Visitor(url).get("/console/pipelines/none").status == 404


def test_dead_letters_are_counted_linked_and_have_a_command(window: Window) -> None:
    page = window.open("/console/pipelines/shop")
    rows = page.get_by_role("region", name="Dead letters", exact=True).locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text(RULE)
    expect(rows.first).to_contain_text("4")
    rows.first.get_by_role("link", name="Messages").click()
    expect(page.locator(".records li")).to_have_count(4)
    window.open("/console/pipelines/shop")
    page.get_by_label("Rule").fill(RULE)
    page.get_by_label("Since").fill("2020-01-31T12:00:05")
    page.get_by_role("button", name="Count").click()
    expect(rows).to_have_count(1)
    expect(page.get_by_text("The selection has 4 dead letters.")).to_be_visible()
    commands = page.get_by_role("region", name="Commands of the replay").inner_text().splitlines()
    words = shlex.split(commands[0])
    assert words[:4] == ["penstock", "pipeline", "replay", RUN.file]
    assert words[4:] == [
        f"--bootstrap={RUN.bootstrap}", f"--admin={RUN.broker_admin}",
        f"--state={RUN.state_directory}", "--dead-letters", f"--rule={RULE}",
        "--since=2020-01-31T12:00:05",
    ]  # fmt: skip
    assert shlex.split(commands[1]) == [*words, "--execute"]


def test_wrong_selections_and_empty_ones_are_shown(url: str) -> None:
    visitor = Visitor(url)
    page = visitor.get("/console/pipelines/shop?since=noon").words
    assert "since 'noon' is not a time, such as 2026-01-31T12:00:00" in page
    page = visitor.get("/console/pipelines/shop?rule=none").words
    assert "No dead letter matches. These are all that the topic has." in page
    assert "--execute" not in page.partition("Held records 2 records")[0].rpartition("Dead")[2]


def test_the_names_of_headers_are_those_of_pipelines() -> None:
    assert dead_letters.PREFIX == PREFIX


# Host agents


def test_an_agent_is_shown_with_its_own_figures(url: str) -> None:
    visitor = Visitor(url)
    page = visitor.get("/console/hosts/1").words
    assert "State serving Connections " in page
    assert "Accepted 20 chunks, 19.5 KiB Events 20" in page
    assert "Accepted frames 1 Failed frames (retryable) 0" in page
    assert "till-7 open 0 " in page
    page = visitor.get("/console/hosts/2").words
    assert "State serving A socket reports only the state" in page
    assert f"{SILENT} does not answer: " in visitor.get("/console/hosts/3").words
    assert visitor.get("/console/hosts/4").status == 404


def wait_for_words(visitor: Visitor, path: str, words: str) -> None:
    """Reload a page until it has these words."""
    deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
    while words not in visitor.get(path).words:
        assert SYSTEM_CLOCK.monotonic() < deadline


def test_rates_are_those_between_two_pages(url: str) -> None:
    visitor = Visitor(url)
    wait_for_words(visitor, "/console/hosts/1", "Chunks now 0/s Bytes now 0 B/s")
    wait_for_words(visitor, "/console/hosts", "Rates are of the last ")


def test_an_agent_with_rules_gets_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    rules = tmp_path / "rules"
    rules.write_text(http_rules())
    token.write_text("another token")
    with Agent(settings={"host.acl.file": str(rules)}, http=True) as agent:
        settings = {
            "console.host.agents": agent.http_url,
            "console.host.agents.token.file": str(token),
        }
        with Broker(settings) as broker:
            visitor = Visitor(broker.admin_url)
            page = visitor.get("/console/hosts").words
            assert "status 401; it needs a token that may read its status" in page
            token.write_text(f"{TOKEN}\n")
            wait_for_words(visitor, "/console/hosts", "serving memory 0 ")
            token.unlink()
            wait_for_words(visitor, "/console/hosts", "the token cannot be read: ")


# Outboxes


def test_an_outbox_is_shown_with_its_files_and_readers(url: str, broker: Broker) -> None:
    visitor = Visitor(url)
    page = visitor.get("/console/outboxes").words
    assert "weather 2 6 527 KiB" in page
    assert "/nowhere/outbox cannot be read: outbox root /nowhere/outbox: No such file" in page
    page = visitor.get("/console/outboxes/1").words
    assert "Topic weather has 6 records" in page
    assert "load 2 " in page  # of 6 pointers it has read 4
    assert "JFK 4 352 KiB" in page
    assert "LHR 2 176 KiB" in page
    assert f"-t weather -b {broker.bootstrap} --execute" in page


def test_a_survey_counts_old_payloads_and_leftovers(tmp_path: Path) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()

    def made(relative: str, size_bytes: int, hours: int) -> Path:
        path = tmp_path / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size_bytes)
        seconds = now_ms / 1000 - hours * 3600
        os.utime(path, (seconds, seconds))
        return path

    at_ms = now_ms - 30 * HOUR_MS
    made(data_path("JFK", "old", at_ms), 10, hours=30)
    made(data_path("JFK", "new", now_ms), 20, hours=0)
    left = made(data_path("LHR", "left", at_ms), 1, hours=0)
    left.rename(left.parent / temporary_name("a", 1))
    young = left.parent / temporary_name("a", 2)
    young.write_bytes(b"xy")
    made(f"{left.parent.relative_to(tmp_path)}/{temporary_name('a', 3)}", 4, hours=2)
    made("notes.txt", 1, hours=0)
    found = survey(str(tmp_path), SYSTEM_CLOCK)
    total = found.total
    assert (total.payloads, total.size_bytes, total.old, total.old_bytes) == (2, 30, 1, 10)
    assert (total.temporaries, total.temporary_bytes) == (3, 7)
    assert (total.abandoned, total.abandoned_bytes) == (1, 4)
    assert total.oldest_ms is not None
    assert now_ms - 31 * HOUR_MS < total.oldest_ms < now_ms - 29 * HOUR_MS
    assert {row.partition_id: row.payloads for row in found.partitions} == {"JFK": 2, "LHR": 0}
    assert (found.foreign, found.whole) == (1, True)
    with pytest.raises(RootUnavailable):
        survey(str(tmp_path / "missing"), SYSTEM_CLOCK)


def test_a_survey_ends_at_its_limit(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / data_path(f"p{number}", "b", 0)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    found = survey(str(tmp_path), SYSTEM_CLOCK, batches_max=2)
    assert (found.total.payloads, found.whole) == (2, False)


# Permissions


def test_these_pages_need_describe_on_the_cluster(tmp_path: Path) -> None:
    settings = {"console.pipelines": SILENT, "console.outboxes": "/nowhere"}
    with guarded_broker(tmp_path, settings) as broker:
        alice = Visitor(broker.admin_url, "alice")
        assert SILENT not in alice.get("/console/pipelines").words
        for path in ("pipelines/shop", "hosts", "hosts/1", "outboxes", "outboxes/1"):
            assert alice.get(f"/console/{path}").status == 403
        with broker.client() as client:
            client.create_acls([allow("describe", "cluster", "kafka-cluster", "alice")])
        assert SILENT in alice.get("/console/pipelines").words
        assert "No host agents are named." in alice.get("/console/hosts").words
        assert "/nowhere cannot be read" in alice.get("/console/outboxes").words
