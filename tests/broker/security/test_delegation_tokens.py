"""Delegation tokens: who may create, see, renew and expire them, and logins with them."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

from penstock.broker.server import BrokerServer
from penstock.control.access import change_acls
from penstock.control.delegation import tokens_of
from penstock.security.acls import AclBinding
from penstock.security.authoriser import AclAuthoriser
from penstock.security.delegation import EXTENSION
from penstock.security.sasl.scram import ScramClient
from tests.broker.conftest import StartBroker
from tests.broker.security.secured import LISTENERS, authenticate, exchange, principal, security
from tests.broker.wire_client import WireClient
from tests.security.access import allow

MECHANISM = "SCRAM-SHA-256"
DISABLED, NOT_FOUND, MISMATCH, NOT_ALLOWED, DENIED, TYPE = 61, 62, 63, 64, 65, 67
HOUR_MS = 3_600_000
NEW = {
    "owner_principal_type": None,
    "owner_principal_name": None,
    "renewers": [{"principal_type": "User", "principal_name": "bob"}],
    "max_lifetime": HOUR_MS,
}
CAROL = {"owner_principal_type": "User", "owner_principal_name": "carol"}


class TokenClient(ScramClient):
    """SCRAM exchange with the extension of delegation tokens."""

    def __init__(self, token: Any) -> None:
        password = b64encode(token.hmac).decode()
        super().__init__(MECHANISM, token.token_id, password, nonce="nonce-of-a-client")
        self._bare += f",{EXTENSION}"


async def started(start: StartBroker, tmp_path: Path, key: str = "secret") -> BrokerServer:
    own = security(tmp_path, delegation_token_secret_key=key)
    return await start({"listeners": LISTENERS}, security=own, authoriser=AclAuthoriser())


async def connected(server: BrokerServer, user: str) -> WireClient:
    client = await WireClient.connect(server.bound["SASL_PLAINTEXT"])
    assert (await authenticate(client, MECHANISM, exchange(MECHANISM, user))).error_code == 0
    return client


async def create(client: WireClient, **changes: Any) -> Any:
    return await client.call("CreateDelegationToken", 3, {**NEW, **changes})


async def described(client: WireClient, owners: Any = None) -> list[str]:
    answer = await client.call("DescribeDelegationToken", 3, {"owners": owners})
    assert answer.error_code == 0
    return [token.token_id for token in answer.tokens]


async def allowed(server: BrokerServer, *bindings: AclBinding) -> None:
    await change_acls(server.control, lambda known: (bindings, ()))
    await server.cluster.refresh()


async def test_a_token_logs_in_as_its_owner_until_it_expires(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await started(start_broker, tmp_path)
    alice = await connected(server, "alice")
    token = await create(alice)
    assert token.error_code == 0
    assert await described(alice) == [token.token_id]
    stored = tokens_of(server.cluster.image)[token.token_id]
    assert b64encode(token.hmac).decode() not in str(stored)
    job = await WireClient.connect(server.bound["SASL_PLAINTEXT"])
    answer = await authenticate(job, MECHANISM, TokenClient(token))
    assert answer.error_code == 0
    assert 0 < answer.session_lifetime.total_seconds() * 1000 <= HOUR_MS
    await alice.close()
    # a connection by a token may not create another one
    assert (await create(job)).error_code == NOT_ALLOWED
    assert principal(server) == "User:alice"
    await job.close()
    owner = await connected(server, "alice")
    expired = {"hmac": token.hmac, "expiry_time_period": -1}
    assert (await owner.call("ExpireDelegationToken", 2, expired)).error_code == 0
    assert await described(owner) == []
    late = await WireClient.connect(server.bound["SASL_PLAINTEXT"])
    assert (await authenticate(late, MECHANISM, TokenClient(token))).error_code == 58
    await late.close()
    await owner.close()


async def test_owners_and_renewers_change_a_token_and_others_do_not(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await started(start_broker, tmp_path)
    alice, bob = await connected(server, "alice"), await connected(server, "bob")
    token = await create(alice)
    own = await create(alice, renewers=[])
    renewal = {"hmac": token.hmac, "renew_period": 10 * HOUR_MS}
    renewed = await bob.call("RenewDelegationToken", 2, renewal)
    assert (renewed.error_code, renewed.expiry_timestamp) == (0, token.max_timestamp)
    assert await described(bob) == [token.token_id]
    for name, field in (
        ("RenewDelegationToken", "renew_period"),
        ("ExpireDelegationToken", "expiry_time_period"),
    ):
        foreign = await bob.call(name, 2, {"hmac": own.hmac, field: -1})
        assert foreign.error_code == MISMATCH
        unknown = await bob.call(name, 2, {"hmac": b"?", field: -1})
        assert unknown.error_code == NOT_FOUND
    assert set(await described(alice)) == {token.token_id, own.token_id}
    asked = [{"principal_type": "User", "principal_name": "carol"}]
    assert await described(alice, asked) == []
    await alice.close()
    await bob.close()


async def test_tokens_of_others_need_permissions(start_broker: StartBroker, tmp_path: Path) -> None:
    server = await started(start_broker, tmp_path)
    alice, bob = await connected(server, "alice"), await connected(server, "bob")
    assert (await create(alice, **CAROL)).error_code == DENIED
    await allowed(server, allow("create_tokens", "user", "User:carol", "alice"))
    token = await create(alice, **CAROL, renewers=[])
    assert (token.principal_name, token.token_requester_principal_name) == ("carol", "alice")
    assert await described(alice) == [token.token_id]
    assert await described(bob) == []
    await allowed(server, allow("describe_tokens", "user", "User:carol", "bob"))
    assert await described(bob) == [token.token_id]
    other = await create(alice, renewers=[])
    assert await described(bob) == [token.token_id]
    await allowed(server, allow("describe", "delegation_token", other.token_id, "bob"))
    assert set(await described(bob)) == {token.token_id, other.token_id}
    strange = [{"principal_type": "Group", "principal_name": "g"}]
    assert (await create(alice, renewers=strange)).error_code == TYPE
    await alice.close()
    await bob.close()


async def test_tokens_need_a_key_and_an_authenticated_connection(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await started(start_broker, tmp_path, key="")
    alice = await connected(server, "alice")
    plain = await WireClient.connect(server.bound["PLAINTEXT"])
    for client, error in ((alice, DISABLED), (plain, NOT_ALLOWED)):
        assert (await create(client)).error_code == error
        for name, request in (
            ("RenewDelegationToken", {"hmac": b"", "renew_period": 1}),
            ("ExpireDelegationToken", {"hmac": b"", "expiry_time_period": 1}),
            ("DescribeDelegationToken", {"owners": None}),
        ):
            assert (await client.call(name, 2, request)).error_code == error
        await client.close()
