r"""Format of `store.properties`: the identity of an object store, written once into an empty store.

Text, in the manner of Kafka's `meta.properties`:

    version=1\n
    cluster.id=<the id of the cluster that owns the objects>\n
    store.id=<a random UUID>\n

It has no checksum, so that an administrator can write it by hand. Any other text is rejected.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from uuid import UUID

from penstock.archive.errors import CorruptObject

KEY: Final = "store.properties"
STORE_PROPERTIES_BYTES_MAX: Final = 4096

_TEXT: Final = re.compile(
    r"version=1\ncluster\.id=([^\n]{1,1024})\nstore\.id=([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\n?"
)


class StoreProperties(NamedTuple):
    cluster_id: str
    store_id: UUID


def encode_store_properties(properties: StoreProperties) -> bytes:
    cluster_id, store_id = properties
    return f"version=1\ncluster.id={cluster_id}\nstore.id={store_id}\n".encode()


def decode_store_properties(data: bytes) -> StoreProperties:
    found = _TEXT.fullmatch(data.decode(errors="replace"))
    if found is None:
        raise CorruptObject(
            f"{KEY}: {len(data)} bytes that begin with {data[:40]!r} are not a store's identity"
        )
    return StoreProperties(found[1], UUID(found[2]))
