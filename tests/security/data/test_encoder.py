"""The client-side encoder, to a broker and back, and with the serialisers of other clients."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.security.data import (
    Encrypt,
    FieldEncoder,
    FieldsUnreadable,
    Mask,
    ProtectedClient,
    Tokenize,
    open_value,
    seal_value,
    token,
)
from penstock.security.data.encoder import NoSubject, NoSuchColumn
from penstock.security.data.file_ring import FileKeyRing
from penstock.testing import Broker


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(admin=False) as broker:
        yield broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap) as client:
        yield client


def encoder(ring: FileKeyRing) -> FieldEncoder:
    return FieldEncoder(ring, {"value": Encrypt(subject="key", text=True)})


ORDERS = pa.table({"key": ["a", "b", "a"], "value": ["one", "two", None], "extra": [1, 2, 3]})


def test_values_are_encrypted_on_the_broker_and_clear_at_both_ends(
    ring: FileKeyRing, client: Client, request: pytest.FixtureRequest
) -> None:
    topic = f"orders-{request.node.callspec.id}"
    client.create_topic(topic, 1)
    protected = ProtectedClient(client, encoder(ring))
    assert protected.write_arrow(topic, ORDERS).records == 3
    stored = client.fetch_raw(topic, 0, 0).data
    assert b"one" not in stored
    assert b"two" not in stored
    clear = client.read_arrow(topic).column("value").to_pylist()
    assert [item and item[0] for item in clear] == [1, 1, None]
    read = protected.read_arrow(topic)
    assert read.column("value").to_pylist() == ["one", "two", None]
    assert read.column("key").to_pylist() == [b"a", b"b", b"a"]
    ring.shred("a")
    batches = list(protected.iter_arrow(topic))
    assert [entry for b in batches for entry in b.column("value").to_pylist()] == [
        None,
        "two",
        None,
    ]


def test_what_cannot_be_decrypted_is_an_error_that_counts(
    ring: FileKeyRing, client: Client, request: pytest.FixtureRequest
) -> None:
    topic = f"damaged-{request.node.callspec.id}"
    client.create_topic(topic, 1)
    ProtectedClient(client, encoder(ring)).write_arrow(topic, ORDERS)
    client.write_arrow(topic, pa.table({"key": ["b"], "value": ["in clear"]}))
    theirs = client.read_arrow(topic).column("value").to_pylist()[0]
    client.write_arrow(topic, pa.table({"key": ["b"], "value": [theirs]}))
    with pytest.raises(
        FieldsUnreadable, match=r"2 values of column value .* the first, in row 3: it has 8 bytes"
    ) as caught:
        ProtectedClient(client, encoder(ring)).read_arrow(topic)
    assert caught.value.rows == [3, 4]
    lenient = encoder(ring)
    read = ProtectedClient(client, lenient, unreadable="null").read_arrow(topic)
    assert read.column("value").to_pylist() == ["one", "two", None, None, None]
    assert lenient.unreadable == 2


def test_named_columns_of_a_table_are_protected_and_others_pass(ring: FileKeyRing) -> None:
    fields: dict[str, Mask | Tokenize | Encrypt] = {
        "mail": Mask(kind="email"),
        "customer": Tokenize(),
        "note": Encrypt(subject="customer", text=True),
    }
    table = pa.table(
        {
            "id": [1, 2],
            "mail": ["someone@example.org", None],
            "customer": [17, 18],
            "note": ["late", "early"],
        }
    )
    found = FieldEncoder(ring, fields).encode(table).read_all()
    assert found.column("id").to_pylist() == [1, 2]
    assert found.column("mail").to_pylist() == ["s***@example.org", None]
    assert found.column("customer").to_pylist() == [
        token(ring, "customer", b"17"),
        token(ring, "customer", b"18"),
    ]
    # The subject is what the column had before it became tokens.
    assert [
        open_value(ring, subject, note)
        for subject, note in zip(["17", "18"], found.column("note").to_pylist(), strict=True)
    ] == [b"late", b"early"]


def test_missing_columns_and_subjects_are_reported_before_anything_is_sent(
    ring: FileKeyRing,
) -> None:
    with pytest.raises(NoSuchColumn, match=r"'value', is missing\. The columns are key"):
        encoder(ring).encode(pa.table({"key": ["a"]}))
    with pytest.raises(NoSuchColumn, match="column with the subjects, 'key', is missing"):
        encoder(ring).encode(pa.table({"value": ["a"]}))
    with pytest.raises(NoSubject, match="1 values of column value have no subject: column key is"):
        encoder(ring).encode(
            pa.table({"key": ["a", None, None], "value": ["x", "y", None]})
        ).read_all()


def test_one_value_for_any_serialiser(ring: FileKeyRing) -> None:
    def serialise(order: dict[str, str]) -> bytes:
        sealed = seal_value(ring, order["customer"], order["note"].encode()) or b""
        return json.dumps(order | {"note": sealed.hex()}).encode()

    def deserialise(value: bytes) -> dict[str, str | None]:
        order: dict[str, str | None] = json.loads(value)
        note = open_value(ring, order["customer"] or "", bytes.fromhex(order["note"] or ""))
        return order | {"note": None if note is None else note.decode()}

    order = {"customer": "a17", "note": "by the back door"}
    sent = serialise(order)
    assert b"door" not in sent
    assert deserialise(sent) == order
    ring.shred("a17")
    assert deserialise(sent) == {"customer": "a17", "note": None}
