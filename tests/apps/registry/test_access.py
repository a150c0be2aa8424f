"""Users and ACLs of a registry without a broker, which follow the metadata image."""

from __future__ import annotations

import asyncio

from penstock.apps.registry.standalone import Access
from penstock.control.access import change_acls, change_credentials
from penstock.control.sqlite import MemoryControlPlane
from penstock.security import AclAuthoriser, Principal
from penstock.security.acls import AclBinding
from penstock.security.credentials import SCRAM_SHA_512, derive

ALICE = Principal("User", "alice")
MAY_READ = AclBinding(
    resource_type="topic", name="orders", pattern_type="literal", principal="User:alice",
    host="*", operation="describe", permission="allow",
)  # fmt: skip


def reads(authoriser: AclAuthoriser) -> bool:
    return authoriser.rights(ALICE, "127.0.0.1").allows("describe", "topic", "orders")


async def test_a_change_is_loaded_when_it_is_noticed() -> None:
    control = MemoryControlPlane()
    authoriser = AclAuthoriser()
    access = Access(control, authoriser)
    await access.start()
    credential = derive(SCRAM_SHA_512, "secret", salt=b"0123456789", iterations=4096)
    await change_acls(control, lambda _: ([MAY_READ], []))
    await change_credentials(control, lambda _: {"alice": {SCRAM_SHA_512: credential}})
    assert not reads(authoriser)
    assert access.users.credential(SCRAM_SHA_512, "alice") is None
    access.notice()
    async with asyncio.timeout(2):  # far less than LOOK_SECONDS
        while not reads(authoriser):
            await asyncio.sleep(0.005)
    assert access.users.credential(SCRAM_SHA_512, "alice") == credential
    await access.stop()


async def test_what_is_stored_already_is_loaded_at_the_start() -> None:
    control = MemoryControlPlane()
    await change_acls(control, lambda _: ([MAY_READ], []))
    authoriser = AclAuthoriser()
    access = Access(control, authoriser)
    await access.start()
    assert reads(authoriser)
    await access.stop()
