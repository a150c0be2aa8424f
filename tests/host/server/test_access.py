"""An agent with rules: admission at the socket and at the HTTP front, and audit events."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.host.server.access_file import Access, RulesUnusable
from penstock.host.server.agent import HostAgent
from penstock.host.server.http import NEEDED, OCTETS
from penstock.host.server.socket_file import SocketPathUnusable
from penstock.security.credentials import SCRAM_SHA_512, derive
from penstock.security.listeners.http_authentication import REFUSAL
from penstock.wire.frames import ACCEPTED, FAILED, HELLO_ACK, PING, PONG, Header, encode
from tests.host.server.peers import PATIENCE_SECONDS, GateSink, batch, data, peer, serving, until
from tests.host.server.test_http import LOCAL, Answer, call
from tests.security.access import Noted

PASSWORD, TOKEN = "correct horse", "a-token-of-much-entropy"
ROOT = os.getuid() == 0
STRANGER, STRANGERS_GROUP = (65_534, 65_534) if ROOT else (os.getuid(), os.getgid())
"""Only root can become somebody else; for others, the agent is taken for another user's."""
NO_RULE = f"host.acl.file has no rule for uid {STRANGER}, gid {STRANGERS_GROUP}"


def rule(topics: str, *, uid: int | None = None) -> str:
    uid = os.getuid() if uid is None else uid
    return f'[[rule]]\nuid = {uid}\nprincipal = "User:app"\ntopics = [{topics}]\n'


def http_rules() -> str:
    kept = derive(SCRAM_SHA_512, PASSWORD, salt=b"0123456789abcdef", iterations=4096)
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    return (
        f'[[rule]]\nuser = "web"\npassword = "{kept.text()}"\nprincipal = "User:web"\n'
        f'topics = ["clicks"]\n[[rule]]\ntoken_sha256 = "{digest}"\n'
        'principal = "User:eye"\nobserves = true\n'
    )


@asynccontextmanager
async def guarded(
    path: Path, rules: str, sink: GateSink | None = None, **options: Any
) -> AsyncIterator[tuple[HostAgent, Noted]]:
    path.write_text(rules)
    path.chmod(0o600)
    noted = Noted()
    async with serving(sink, acl_file=str(path), audit=noted, **options) as agent:
        yield agent, noted


async def test_a_producer_publishes_to_its_topics_alone(tmp_path: Path) -> None:
    sink = GateSink()
    rules = rule('"orders", "metrics.*"')
    async with guarded(tmp_path / "rules", rules, sink) as (agent, noted):
        async with peer(agent, topics=["orders", "metrics.cpu"]) as one:
            await one.send(data(0, b"a", topic="orders"))
            await one.expect(ACCEPTED, ranges=[0, 1])
            await one.send(batch(1, [b"b", b"c"], topic="secrets"), data(3, b"d", topic="secrets"))
            said = "User:app may not publish to topic secrets"
            failed = await one.expect(FAILED, first_sequence=1, count=2, reason=said)
            assert (failed.retryable, failed.payload_bytes) == (False, 2)
            await one.expect(FAILED, first_sequence=3, count=1, reason=said)
            await one.send(data(4, b"e"), data(5, b"f", topic="metrics.cpu"))
            await one.expect(FAILED, first_sequence=4)
            await one.expect(ACCEPTED, ranges=[5, 1])
            (connection,) = agent.connections
            assert not connection.machine.window.taken.payload_bytes
        assert sink.accepted == [b"a", b"f"]
    assert noted.facts("principal", "resources") == [
        ("authentication", "success", "User:app", []),
        ("denial", "denied", "User:app", ["secrets"]),
        ("denial", "denied", "User:app", [""]),
    ]


async def test_a_topic_of_hello_is_refused_before_credit(tmp_path: Path) -> None:
    sink = GateSink()
    async with guarded(tmp_path / "rules", rule('"orders"'), sink) as (agent, noted):
        async with peer(agent, introduce=False) as one:
            answer = await one.introduced(topics=["orders", "secrets"])
            assert not answer.accepted
            assert not answer.retryable
            assert answer.reason == "User:app may not publish to topic secrets"
            assert answer.payload_bytes == 0
            assert await one.ended() == []
        assert sink.topics == []
    assert ("denial", "denied", "User:app", ["secrets"]) in noted.facts("principal", "resources")


async def test_without_a_rule_the_agents_own_user_may_look_and_no_more(tmp_path: Path) -> None:
    rules = rule('"orders"', uid=os.getuid() + 1)
    async with (
        guarded(tmp_path / "rules", rules) as (agent, _),
        peer(agent, introduce=False) as one,
    ):
        await one.send(encode(Header(type=PING, token=7)))
        await one.expect(PONG, token=7)
        answer = await one.introduced(topics=["orders"])
        assert not answer.accepted
        assert answer.reason == f"User:uid-{os.getuid()} may not publish to topic orders"


_STRANGER = """
import os, socket, sys
from penstock.wire.frames import decode
from tests.host.server.peers import data, hello

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
peer.settimeout(20)
peer.connect(sys.argv[1])
if sys.argv[3:]:
    peer.sendall(hello(topics=["orders"]))
received = b""
while True:
    frame, size = decode(received, 0, 65536)
    if frame is not None:
        received = received[size:]
        header = frame.header
        print(header.type, header.accepted, header.retryable, header.payload_bytes, header.reason)
        sys.stdout.flush()
        if header.accepted:
            peer.sendall(data(0, b"a", topic="orders"))
        continue
    piece = peer.recv(65536)
    if not piece:
        break
    received += piece
"""


@asynccontextmanager
async def stranger(agent: HostAgent, *words: str) -> AsyncIterator[asyncio.StreamReader]:
    """A process of another user than the agent's, which says what it hears."""
    agent.connections.access.own_uid = 0
    path = Path(agent.settings.socket_path)
    path.parent.chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _STRANGER, str(path), str(STRANGER), *words,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield process.stdout
        assert await process.wait() == 0


async def test_a_producer_without_a_rule_is_refused_before_hello(tmp_path: Path) -> None:
    rules = rule('"*"', uid=STRANGER - 1)
    async with guarded(tmp_path / "rules", rules, socket_mode="0666") as (agent, noted):
        granted = agent.connections.budget.granted_bytes
        async with stranger(agent) as said:
            assert (await said.read()).decode() == f"{HELLO_ACK} False False 0 {NO_RULE}\n"
        assert agent.connections.budget.granted_bytes == granted
        assert not agent.connections
        assert agent.connections.totals.denied_connections == 1
    (event,) = noted.events
    assert (event.event, event.outcome, event.mechanism) == (
        "authentication", "failure", "SO_PEERCRED",
    )  # fmt: skip


async def test_rules_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    async with (
        guarded(path, rule('"orders"')) as (agent, _),
        peer(agent, topics=["orders"]) as one,
    ):
        access = agent.connections.access
        path.write_text(rule('"metrics"') + "# changed\n")
        await until(lambda: access.rules and access.rules.peers[0][2].allows("metrics"))
        await one.send(data(0, b"a", topic="orders"), data(1, b"b", topic="metrics"))
        await one.expect(FAILED, first_sequence=0)
        await one.expect(ACCEPTED, ranges=[1, 1])

        path.write_text("[[rule]] nonsense")
        await until(lambda: access.failing)
        await one.send(data(2, b"c", topic="metrics"))
        await one.expect(ACCEPTED, ranges=[2, 1])
        path.unlink()
        assert not access.changed()
        path.write_text(rule('"orders"'))
        await until(lambda: not access.failing)
        await one.send(data(3, b"d", topic="orders"))
        await one.expect(ACCEPTED, ranges=[3, 1])


async def test_a_connection_whose_rule_is_removed_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    async with guarded(path, rule('"orders"', uid=STRANGER), socket_mode="0666") as (agent, _):
        async with stranger(agent, "publish") as said:
            assert (await said.readline()).startswith(f"{HELLO_ACK} True".encode())
            assert (await said.readline()).startswith(f"{ACCEPTED} ".encode())
            path.write_text(rule('"orders"', uid=STRANGER - 1) + "\n")
            last = (await said.read()).decode()
        assert last == f"{FAILED} False False 0 {NO_RULE}\n"
        assert not agent.connections


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("nonsense", 0o600, "Expected '='"),
        ("", 0o602, "is writable by all users"),
        ("#" * (2 << 20), 0o600, "more than 1048576 bytes"),
        (None, 0o600, "No such file or directory"),
    ],
)
def test_a_file_of_no_use_is_refused(
    tmp_path: Path, content: str | None, mode: int, said: str
) -> None:
    path = tmp_path / "rules"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(RulesUnusable, match=said):
        Access(str(path))


# The socket file


async def test_the_socket_file_has_the_group_that_is_asked_for() -> None:
    group = os.getgroups()[0] if os.getgroups() else os.getgid()
    async with serving(socket_group=str(group), socket_mode="0620") as agent:
        found = os.stat(agent.settings.socket_path)
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (group, 0o620)
    with pytest.raises(SocketPathUnusable, match="group 'no-such-group' does not exist"):
        async with serving(socket_group="no-such-group"):
            pass


# HTTP


def basic(user: str, password: str) -> Mapping[str, str]:
    return {"authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


async def publish(agent: HostAgent, topic: str, headers: Mapping[str, str]) -> Answer:
    headers = {"content-type": OCTETS, **headers}
    return await call(agent, "POST", f"/v1/ingest?topic={topic}", b"one", headers)


async def test_http_takes_credentials(tmp_path: Path) -> None:
    sink = GateSink()
    options: dict[str, Any] = {"http_listener": LOCAL}
    async with guarded(tmp_path / "rules", http_rules(), sink, **options) as (agent, noted):
        for _ in range(2):
            answer = await publish(agent, "clicks", basic("web", PASSWORD))
            assert answer.status == 200, answer
        assert sink.accepted == [b"one"] * 2
        refused = await publish(agent, "orders", basic("web", PASSWORD))
        assert refused.status == 403
        assert refused.json == {
            "error": "topic_authorization_failed",
            "message": "User:web may not publish to topic orders",
        }
    assert noted.facts("principal", "resources") == [
        ("authentication", "success", "User:web", []),
        ("denial", "denied", "User:web", ["orders"]),
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("web", "wrong"),
        basic("nobody", PASSWORD),
        basic("", PASSWORD),
        {"authorization": "Basic !!!"},
        {"authorization": "Digest abc"},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN} {TOKEN}"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/ingest?topic=clicks", "/metrics", "/v1/status"])
async def test_http_without_good_credentials(
    tmp_path: Path, headers: Mapping[str, str], path: str
) -> None:
    sink = GateSink()
    options: dict[str, Any] = {"http_listener": LOCAL}
    async with guarded(tmp_path / "rules", http_rules(), sink, **options) as (agent, noted):
        method = "POST" if "ingest" in path else "GET"
        answer = await call(agent, method, path, b"", {"content-type": OCTETS, **headers})
        assert answer.status == 401
        assert answer.json == {
            "error": "sasl_authentication_failed",
            "message": REFUSAL if headers else NEEDED,
        }
        assert answer.headers["www-authenticate"] == 'basic realm="penstock", bearer'
        for open_path in ("/livez", "/readyz"):
            assert (await call(agent, "GET", open_path)).status == 200
    assert sink.accepted == []
    (event,) = noted.events
    assert (event.event, event.outcome, event.address) == (
        "authentication", "failure", "127.0.0.1",
    )  # fmt: skip
    assert PASSWORD not in repr(event)


async def test_observers_cannot_publish(tmp_path: Path) -> None:
    options: dict[str, Any] = {"http_listener": LOCAL}
    token = {"authorization": f"bearer {TOKEN}"}
    async with guarded(tmp_path / "rules", http_rules(), **options) as (agent, noted):
        assert (await call(agent, "GET", "/metrics", headers=token)).status == 200
        assert (await call(agent, "GET", "/v1/status", headers=token)).status == 200
        assert (await publish(agent, "clicks", token)).status == 403
        web = basic("web", PASSWORD)
        assert (await call(agent, "GET", "/metrics", headers=web)).status == 403
    came = [event.principal for event in noted.events if event.event == "authentication"]
    assert came == ["User:eye", "User:web"]  # once each
