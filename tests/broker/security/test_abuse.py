"""Attacks of unauthenticated clients: each is closed soon, and does not affect others.

These have a broker whose state they inspect; rejected bytes are in `test_hostile_peers.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from penstock.security.listeners import listener_group
from penstock.security.sasl.oauthbearer import OAuthBearerClient
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.framing import request_frame
from tests.broker.conftest import StartBroker
from tests.broker.security.secured import authenticate, context, exchange, secured
from tests.broker.wire_client import WireClient
from tests.security.exchanges import key_set, signing_key, token

pytestmark = pytest.mark.timeout(120)
Attack = Callable[[BrokerServer, Path], Coroutine[Any, Any, None]]
ATTACKS: dict[str, Attack] = {}
GROWTH_BYTES = 64 << 20
CLIENT_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(32)


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.replace("_", " ")] = function
    return function


@pytest.fixture
async def server(start_broker: StartBroker, tmp_path: Path) -> BrokerServer:
    key = signing_key("EC")
    (tmp_path / "jwks.json").write_bytes(key_set(k1=key))
    return await secured(
        start_broker,
        tmp_path,
        sasl_oauthbearer_jwks_endpoint_url=(tmp_path / "jwks.json").as_uri(),
        sasl_oauthbearer_expected_audience="penstock",
        authentication_timeout_ms=1_500,
        max_unauthenticated_connections_per_ip=50,
        max_failed_authentications_per_ip=10_000,
    )


async def opened(server: BrokerServer, listener: str) -> WireClient:
    return await WireClient.connect(server.bound[listener])


async def ends(client: WireClient, *sent: bytes) -> None:
    """Send bytes; the server closes, whatever it says before."""
    for piece in sent:
        client.writer.write(piece)
    async with asyncio.timeout(15):
        with contextlib.suppress(ConnectionError):
            await client.reader.read(-1)
    await client.close()


def frame(name: str, version: int, body: bytes) -> bytes:
    return request_frame(BY_NAME[name].key, version, 1, b"x", body)


@attack
async def a_length_bomb_within_a_frame(server: BrokerServer, tmp_path: Path) -> None:
    """Send a SaslAuthenticate whose length exceeds its bytes."""
    for length in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe"):
        await ends(await opened(server, "SASL_PLAINTEXT"), frame("SaslAuthenticate", 1, length))


@attack
async def a_frame_byte_by_byte(server: BrokerServer, tmp_path: Path) -> None:
    client = await opened(server, "SASL_PLAINTEXT")

    async def drip() -> None:
        for byte in struct.pack(">i", 60_000) + bytes(500):
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    try:
        await ends(client)
    finally:
        dripping.cancel()


@attack
async def nothing_at_all(server: BrokerServer, tmp_path: Path) -> None:
    await ends(await opened(server, "SASL_PLAINTEXT"))


@attack
async def versions_again_and_again(server: BrokerServer, tmp_path: Path) -> None:
    client = await opened(server, "SASL_PLAINTEXT")
    await ends(client, *[client.frame("ApiVersions", 0, {}) for _ in range(1_000)])


@attack
async def handshakes_again_and_again(server: BrokerServer, tmp_path: Path) -> None:
    client = await opened(server, "SASL_PLAINTEXT")
    again = [client.frame("SaslHandshake", 1, {"mechanism": "PLAIN"}) for _ in range(1_000)]
    await ends(client, *again)


@attack
async def a_produce_that_is_sent_along(server: BrokerServer, tmp_path: Path) -> None:
    """Send a produce request without waiting for the authentication's response."""
    client = await opened(server, "SASL_PLAINTEXT")
    message = {"auth_bytes": b"\0alice\0wrong"}
    sent = [
        client.frame("SaslHandshake", 1, {"mechanism": "PLAIN"}),
        client.frame("SaslAuthenticate", 2, message),
        client.frame("DeleteTopics", 1, {"topic_names": ["t"], "timeout": 1000}),
    ]
    await ends(client, *sent)
    assert "t" in server.cluster.image.topics


@attack
async def messages_of_scram_that_are_replayed(server: BrokerServer, tmp_path: Path) -> None:
    one = exchange("SCRAM-SHA-256")
    said: list[bytes] = []
    client = await opened(server, "SASL_PLAINTEXT")
    await client.call("SaslHandshake", 1, {"mechanism": "SCRAM-SHA-256"})
    challenge = b""
    for _ in range(2):
        said.append(one.respond(challenge))
        answer = await client.call("SaslAuthenticate", 2, {"auth_bytes": said[-1]})
        assert answer.error_code == 0
        challenge = answer.auth_bytes
    await client.close()
    client = await opened(server, "SASL_PLAINTEXT")
    await client.call("SaslHandshake", 1, {"mechanism": "SCRAM-SHA-256"})
    await client.call("SaslAuthenticate", 2, {"auth_bytes": said[0]})
    answer = await client.call("SaslAuthenticate", 2, {"auth_bytes": said[1]})
    assert answer.error_code == 58
    await ends(client)


@attack
async def guesses_of_a_password(server: BrokerServer, tmp_path: Path) -> None:
    async def guess(number: int) -> int:
        client = await opened(server, "SASL_PLAINTEXT")
        answer = await authenticate(client, "PLAIN", exchange("PLAIN", "alice", f"guess {number}"))
        await client.close()
        return int(answer.error_code)

    assert set(await asyncio.gather(*map(guess, range(40)))) == {58}


@attack
async def huge_names_and_passwords(server: BrokerServer, tmp_path: Path) -> None:
    for message in (b"\0" + b"a" * 60_000 + b"\0p", b"\0alice\0" + b"p" * 60_000, b"\0" * 60_000):
        client = await opened(server, "SASL_PLAINTEXT")
        await client.call("SaslHandshake", 1, {"mechanism": "PLAIN"})
        answer = await client.call("SaslAuthenticate", 2, {"auth_bytes": message})
        assert answer.error_code == 58
        await ends(client)


async def shows(server: BrokerServer, shown: str) -> None:
    client = await opened(server, "SASL_PLAINTEXT")
    one = OAuthBearerClient(lambda: shown)
    answer = await authenticate(client, "OAUTHBEARER", one)
    assert answer.error_code == 58
    assert "alice" not in str(answer.error_message)
    await ends(client)


@attack
async def tokens_with_made_up_keys(server: BrokerServer, tmp_path: Path) -> None:
    mine = signing_key("EC")
    said = {"sub": "alice", "aud": "penstock", "exp": time.time() + 60}
    tokens = server.security_service.listeners["SASL_PLAINTEXT"].tokens
    assert tokens is not None
    for number in range(20):
        key_id = f"k{number}"
        header = {"jwk": mine.as_dict(private=False), "jku": "https://127.0.0.1:1/jwks"}
        await shows(server, token(mine, said, algorithm="ES256", key_id=key_id, **header))
    assert tokens.loads.succeeded + tokens.loads.failed <= 2


@attack
async def a_huge_key_set(server: BrokerServer, tmp_path: Path) -> None:
    """Send a key set with valid keys: the previous ones stay."""
    tokens = server.security_service.listeners["SASL_SSL"].tokens
    assert tokens is not None
    tokens._tried = None
    (tmp_path / "jwks.json").write_bytes(b'{"keys": [' + b" " * (8 << 20))
    await server.security_service.listener_group.reload()
    assert tokens.loads.failed == 1
    assert tokens._keys.keys


@attack
async def silence_before_tls(server: BrokerServer, tmp_path: Path) -> None:
    await ends(await opened(server, "SSL"))


@attack
async def an_end_in_the_middle_of_tls(server: BrokerServer, tmp_path: Path) -> None:
    for size in (1, 5, 20):
        client = await opened(server, "SSL")
        client.writer.write(CLIENT_HELLO[:size])
        client.writer.write_eof()
        await ends(client)


@attack
async def handshakes_by_the_hundred(server: BrokerServer, tmp_path: Path) -> None:
    """More than may be under way are closed at once; none of them keeps anything."""
    host, port = server.bound["SASL_SSL"]
    opened_by = [socket.create_connection((host, port)) for _ in range(200)]
    async with asyncio.timeout(15):
        while server.security_service.limits.waiting < 50:
            await asyncio.sleep(0.01)
    assert server.security_service.limits.waiting <= 50
    for writer in opened_by:
        writer.close()


@attack
async def nonsense_of_all_sizes(server: BrokerServer, tmp_path: Path) -> None:
    for size in (1, 3, 4, 5, 14, 100, 70_000):
        await ends(await opened(server, "SASL_PLAINTEXT"), struct.pack(">i", size) + b"\xa5" * size)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("name", ATTACKS)
async def test_authenticated_clients_continue_during_an_attack(
    server: BrokerServer, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_group, "HANDSHAKE_SECONDS", 1.0)
    friend = await WireClient.connect(server.bound["PLAINTEXT"])
    await friend.create("t")
    secure = await WireClient.connect(server.bound["SASL_SSL"], context(tmp_path))
    assert (await authenticate(secure, "SCRAM-SHA-256")).error_code == 0
    before = resident_bytes()
    attacking = asyncio.create_task(ATTACKS[name](server, tmp_path))
    try:
        while not attacking.done():
            for client in (friend, secure):
                async with asyncio.timeout(5):
                    assert await client.find("t") == 0
            await asyncio.sleep(0.05)
    finally:
        await attacking
    assert resident_bytes() - before < GROWTH_BYTES
    async with asyncio.timeout(15):
        while len(server._connections) > 2 or server.security_service.limits.waiting:
            await asyncio.sleep(0.01)
    assert server.security_service.limits.waiting == 0
    await friend.close()
    await secure.close()


async def test_an_address_that_fails_too_often_is_closed_for_a_while(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path, max_failed_authentications_per_ip=3)
    for _ in range(3):
        client = await opened(server, "SASL_PLAINTEXT")
        await authenticate(client, "PLAIN", exchange("PLAIN", "alice", "wrong"))
        await ends(client)
    for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
        await ends(await opened(server, listener))
    kept = server.security_service.limits._failures
    kept.update({address: (since - 61, count) for address, (since, count) in kept.items()})
    client = await opened(server, "SASL_PLAINTEXT")
    assert (await authenticate(client, "PLAIN")).error_code == 0
    await client.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_closed_connections_get_no_handshake(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reset: bool
) -> None:
    server = await secured(start_broker, tmp_path, max_failed_authentications_per_ip=3)
    given: list[object] = []
    connect = listener_group.TlsServer._connect

    async def counted(self: listener_group.TlsServer, accepted: socket.socket) -> None:
        given.append(accepted)
        await connect(self, accepted)

    monkeypatch.setattr(listener_group.TlsServer, "_connect", counted)
    for _ in range(3):
        with socket.create_connection(server.bound["SASL_SSL"]) as stranger:
            stranger.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", int(reset), 0)
            )
            stranger.send(CLIENT_HELLO[:20])
    async with asyncio.timeout(15):
        while not server.security_service.limits.refusal(
            "127.0.0.1", asyncio.get_running_loop().time()
        ):
            await asyncio.sleep(0.01)
    assert not given
    assert server.security_service.limits.waiting == 0
