"""Messages pages: records as other clients read them, filters, hostile content, rights, export."""

from __future__ import annotations

import html
import io
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import urlopen

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from playwright.sync_api import expect

from penstock.apps.console.messages.list_views import STREAMS_MAX
from penstock.security.data import Encrypt, FieldEncoder, KeyPlace, Mask, ProtectedClient
from penstock.security.data.file_ring import FileKeyRing
from penstock.security.data.master_keys import master_keys
from penstock.testing import Broker
from tests.apps.console.browsing import Window
from tests.apps.console.visitor import Visitor, guarded_broker
from tests.apps.test_host import until
from tests.security.access import allow

pytestmark = pytest.mark.timeout(120)

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "status", "type": "string"}],
}
PROTO = 'syntax = "proto3"; message Event { int64 id = 1; string name = 2; }'
HOSTILE = {
    "markup": b"<script>window.hacked=1</script><img src=x onerror=window.hacked=1>",
    "template": b"{{7*7}}${7*7}</pre></bdi><svg onload=window.hacked=1>",
    "ansi": b"\x1b[31mred\x1b[0m\x07",
    "invalid": b"\xff\xfe\xc3\x28",
    "nul": b"a\0b",
    "direction": "abc\u202edef\u2066".encode(),
    "surrogate": b'{"a": "\\ud800", "b": "\\u0000"}',
    "deep": b"[" * 5000,
    "huge": b'{"big": "' + b"y" * (900 << 10) + b'"}',
    "empty": b"",
}
MANY = 3000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("messages")
    schemas = directory / "schemas"
    schemas.mkdir()
    (schemas / "files-value.proto").write_text(PROTO)
    settings = {
        "registry.enable": True,
        "registry.listener": "127.0.0.1:0",
        "console.schema.directory": str(schemas),
    }
    with guarded_broker(directory, settings) as broker:
        with broker.client() as client:
            client.create_topic("hostile", 1)
            values = list(HOSTILE.values())
            table = {"key": values[:7] + [None] * 3, "value": values}
            schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
            client.write_arrow("hostile", pa.table(table, schema=schema))
        fill_many(broker)
        yield broker


@pytest.fixture
def visitor(guarded: Broker) -> Visitor:
    return Visitor(guarded.admin_url)


def fill_many(broker: Broker) -> None:
    """Write records with keys, headers and times to the topic `many` with three partitions."""
    with broker.client() as client:
        client.create_topic("many", 3)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    for number in range(MANY):
        producer.produce(
            "many",
            value=json.dumps(document(number)).encode(),
            key=f"key-{number % 100}".encode(),
            partition=number % 3,
            timestamp=1_700_000_000_000 + number,
            headers=[("n", str(number).encode()), ("trace", b"\xff")],
        )
    assert producer.flush(30) == 0


def document(number: int) -> dict[str, Any]:
    nested = {"b": number % 10, "list": [number, {"c": f"x{number}"}]}
    return {"id": number, "a": nested, "text": f'quote " {number}', "flag": number % 2 == 0}


def stored(broker: Broker, topic: str, partitions: int = 1) -> list[Message]:
    """Return all records of a topic as confluent-kafka reads them, by time."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    places = [TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)]
    ends = {index: consumer.get_watermark_offsets(places[index])[1] for index in range(partitions)}
    consumer.assign(places)
    found: list[Message] = []
    while len(found) < sum(ends.values()):
        found += consumer.consume(1000, timeout=1)
    consumer.close()
    return sorted(found, key=lambda record: (record.timestamp()[1], record.partition()))


def listed(page: str) -> list[tuple[int, int]]:
    """Return partition and offset of the records of a list, in its order."""
    found = re.findall(r'class="place">(\d+) / (\d+)<', page)
    return [(int(partition), int(offset)) for partition, offset in found]


def streamed(broker: Broker, topic: str, **parameters: str) -> tuple[list[Any], dict[str, Any]]:
    """Return all rows of a stream and its last line."""
    query = urlencode(parameters)
    with urlopen(f"{broker.admin_url}/console/topics/{topic}/messages/stream?{query}") as response:
        lines = [json.loads(line) for line in response]
    return [row for line in lines for row in line.get("rows", ())], lines[-1]


def test_lists_have_what_another_client_reads_in_both_orders(
    guarded: Broker, visitor: Visitor
) -> None:
    records = stored(guarded, "many", 3)
    places = [(record.partition(), record.offset()) for record in records]
    newest = visitor.get("/console/topics/many/messages")
    assert listed(newest.text) == places[::-1][:50]
    older = re.search(r'data-more href="([^"]+)"', newest.text)
    assert older is not None
    following = visitor.get(older[1].replace("&amp;", "&"))
    assert listed(following.text) == places[::-1][50:100]
    rows, last = streamed(guarded, "many", order="oldest", rows="1000")
    assert [(row["partition"], row["offset"]) for row in rows] == places[:1000]
    more, last = streamed(guarded, "many", order="oldest", cursor=last["cursor"])
    assert [(row["partition"], row["offset"]) for row in more] == places[1000:2000]
    assert last["done"]["stopped"] == "found"
    for row, record in zip(rows, records, strict=False):
        assert row["key"] == record.key().decode()
        assert row["value"] == record.value().decode()
        assert row["timestamp"] == record.timestamp()[1]
        assert row["time"] == "2023-11-14 22:13:20"
        assert row["headers"] == len(record.headers())
        assert row["size_bytes"] == len(record.key()) + len(record.value())


def test_lists_are_sorted_if_a_broker_returns_less_than_requested(guarded: Broker) -> None:
    with guarded.client() as client:
        client.create_topic("segments", 2, {"segment.bytes": str(1 << 20)})  # a Fetch ends with one
    producer = Producer({"bootstrap.servers": guarded.bootstrap, "batch.num.messages": 10})
    for number in range(600):
        value, timestamp = b"x" * (8000 if number % 2 else 20), 1_700_000_000_000 + number
        producer.produce("segments", value, partition=number % 2, timestamp=timestamp)
    assert producer.flush(30) == 0
    expected = [(number % 2, number // 2) for number in range(600)]
    for order, places in (("oldest", expected), ("newest", expected[::-1])):
        rows, _ = streamed(guarded, "segments", order=order)
        assert [(row["partition"], row["offset"]) for row in rows] == places


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"partition": "1", "order": "oldest", "at": "990"}, [(1, at) for at in range(990, 1000)]),
        ({"partition": "2", "at": "4"}, [(2, at) for at in range(4, -1, -1)]),
        ({"order": "oldest", "at": "2023-11-14T22:13:22.997"}, [(0, 999), (1, 999), (2, 999)]),
        ({"at": "2023-11-14T22:13:20.001Z"}, [(1, 0), (0, 0)]),
    ],
)
def test_lists_begin_at_an_offset_or_a_time(
    visitor: Visitor, parameters: Mapping[str, str], expected: list[tuple[int, int]]
) -> None:
    page = visitor.get(f"/console/topics/many/messages?{urlencode(parameters)}")
    assert listed(page.text) == expected


FILTERS: Mapping[str, Callable[[int], bool]] = {
    ".value.id == 17": lambda number: number == 17,
    ".value.a.b > 7 and .value.flag": lambda number: number % 10 > 7 and number % 2 == 0,
    "not .value.flag": lambda number: number % 2 == 1,
    '.value.a.list[1].c == "x40" or .offset == 2': lambda number: number == 40 or number // 3 == 2,
    '.value.text == "quote \\" 99"': lambda number: number == 99,
    '.value.text | contains("e \\" 123")': lambda number: str(number).startswith("123"),
    '.value.text | test("9[0-4]$")': lambda number: 90 <= number % 100 <= 94,
    '.value.a | contains("x77\\"")': lambda number: number == 77,
    '.key | endswith("-42")': lambda number: number % 100 == 42,
    '.headers.n == "5" or .headers["n"] == 6': lambda number: number in (5, 6),
    '.timestamp < "2023-11-14T22:13:20.010Z"': lambda number: number < 10,
    "(.partition == 1 | not) and .value.id != 3 and .value.id < 6": lambda number: (
        number % 3 != 1 and number != 3 and number < 6
    ),
    ".value.missing == null and .value.id == 8": lambda number: number == 8,
    '.value.id == "8"': lambda number: False,
    '.value | startswith("{\\"id\\": 250,")': lambda number: number == 250,
}


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_filters_select_as_a_loop_over_the_values_does(
    guarded: Broker, text: str, order: str
) -> None:
    numbers = range(MANY) if order == "oldest" else range(MANY - 1, -1, -1)
    expected = [(number % 3, number // 3) for number in numbers if FILTERS[text](number)]
    rows, last = streamed(guarded, "many", filter=text, order=order)
    found = [(row["partition"], row["offset"]) for row in rows]
    assert found == expected[:1000]
    assert last["done"]["records"] == MANY
    assert last["done"]["stopped"] == ("found" if len(expected) > 1000 else "end")


def test_the_key_field_selects_keys(visitor: Visitor) -> None:
    page = visitor.get("/console/topics/many/messages?key=key-7&partition=1")
    assert listed(page.text) == [
        (1, number // 3) for number in range(MANY - 1, -1, -1)
        if number % 100 == 7 and number % 3 == 1
    ]  # fmt: skip
    assert (
        len(listed(visitor.get("/console/topics/many/messages?key=y-7&match=contains").text)) == 50
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"filter": ".value.a ="}, "at '=' (character 10)"),
        ({"filter": ".walue"}, "a path begins with one of .key, .value"),
        ({"filter": '.value | test("(")'}, "the regular expression '(' is invalid"),
        ({"filter": "(" * 40 + ".value"}, "nests deeper than 32 levels"),
        ({"filter": "." * 3000}, "at most 2,000"),
        ({"at": "yesterday"}, "neither an offset nor a time"),
        ({"cursor": "x"}, "must have the form"),
        ({"partition": "9"}, "has no partition 9"),
        ({"vf": "avro"}, "has no schema file for its values: add one of many-value.avsc"),
    ],
)
def test_wrong_parameters_are_explained(
    visitor: Visitor, parameters: Mapping[str, str], message: str
) -> None:
    page = visitor.get(f"/console/topics/many/messages?{urlencode(parameters)}")
    assert page.status in (400, 404)
    assert message in page.message


def test_hostile_records_are_text_and_keep_their_bytes(guarded: Broker, visitor: Visitor) -> None:
    page = visitor.get("/console/topics/hostile/messages?order=oldest")
    assert page.status == 200
    assert len(listed(page.text)) == len(HOSTILE)
    for text in (page.text, *(
        visitor.get(f"/console/topics/hostile/messages/0/{offset}?all=1").text
        for offset in range(len(HOSTILE))
    )):  # fmt: skip
        for forbidden in ("<script>window", "<img src=x", "<svg onload", "\x1b", "\0", "\u202e"):
            assert forbidden not in text
    assert "49" not in visitor.get("/console/topics/hostile/messages/0/1").words.split()
    for offset, record in enumerate(stored(guarded, "hostile")):
        where = f"{guarded.admin_url}/console/topics/hostile/messages/0/{offset}"
        with urlopen(f"{where}/value") as response:
            assert response.read() == record.value() == list(HOSTILE.values())[offset]
            assert response.headers["content-disposition"].startswith("attachment")
            assert response.headers["x-content-type-options"] == "nosniff"
    assert "abc\\u202edef\\u2066" in visitor.get("/console/topics/hostile/messages/0/5").words


def test_a_huge_value_is_cut_until_all_is_requested(visitor: Visitor) -> None:
    where = f"/console/topics/hostile/messages/0/{list(HOSTILE).index('huge')}"
    page = visitor.get(where)
    assert len(page.text) < 60_000
    assert "Show all" in page.words
    assert page.text.count("y") < 20_000
    assert visitor.get(f"{where}?all=1").text.count("y") >= 900 << 10


def test_the_text_of_a_record_is_limited_also_if_all_is_requested(
    guarded: Broker, visitor: Visitor
) -> None:
    write(guarded, "lines", [b"[" + b"1," * 400_000 + b"1]"])  # a line for each number
    page = visitor.get("/console/topics/lines/messages/0/0?all=1")
    assert (1 << 20) <= len(page.text) < (2 << 20)
    assert "This is only the beginning. Download all" in page.words


def test_hostile_records_in_a_browser(window: Window, guarded: Broker) -> None:
    window.url = guarded.admin_url
    for path in ("", *(f"/0/{offset}?all=1" for offset in (0, 1, 3, 5))):
        page = window.open(f"/console/topics/hostile/messages{path}")
        assert page.evaluate("window.hacked") is None
        assert window.overflow_px(360) <= 0
    page = window.open("/console/topics/hostile/messages")
    page.get_by_role("button", name="Live").click()
    expect(page.locator("[data-state]")).to_contain_text("Live")
    with guarded.client() as client:
        client.write_arrow("hostile", pa.table({"value": [HOSTILE["markup"]]}))
    expect(page.locator(".records .value").first).to_have_text(HOSTILE["markup"].decode())
    assert page.evaluate("window.hacked") is None


def test_a_missing_record_is_explained(visitor: Visitor) -> None:
    assert visitor.get("/console/topics/many/messages/0/5000").status == 416
    assert visitor.get("/console/topics/many/messages/7/0").status == 404
    assert visitor.get("/console/topics/missing/messages").status == 404
    assert visitor.get("/console/topics/many/messages/0/99999999999999999999").status == 416


def test_a_record_has_its_headers_and_bytes(visitor: Visitor) -> None:
    page = visitor.get("/console/topics/many/messages/1/4")
    value = json.dumps(document(13))
    assert json.dumps(document(13), indent=2).split("\n")[1].strip() in page.words
    assert "n 13" in page.words
    assert "trace ff" in page.words
    assert f"00000000 {value.encode()[:16].hex(' ')}" in page.words
    assert "2023-11-14 22:13:20" in page.words


# Formats


def framed(
    broker: Broker, topic: str, values: list[dict[str, Any]], schema: Mapping[str, Any] = AVRO
) -> list[bytes]:
    with SchemaRegistryClient({"url": f"http://{broker.registry_address}"}) as client:
        writer = AvroSerializer(client, Schema(json.dumps(schema), "AVRO"))
        context = SerializationContext(topic, MessageField.VALUE)
        return [bytes(writer(value, context) or b"") for value in values]


def write(broker: Broker, topic: str, values: Sequence[bytes | None]) -> None:
    with broker.client() as client:
        client.create_topic(topic, 1)
        client.write_arrow(topic, pa.table({"value": pa.array(values, pa.binary())}))


def test_values_are_decoded_by_the_registry_and_filtered(guarded: Broker, visitor: Visitor) -> None:
    orders = [{"id": number, "status": "new" if number % 3 else "bad"} for number in range(30)]
    write(guarded, "avro", [*framed(guarded, "avro", orders), b"\0\0\0\0\x63x", b"plain", None])
    rows, _ = streamed(guarded, "avro", order="oldest")
    assert [json.loads(row["value"]) for row in rows[:30]] == orders
    assert {row["value_kind"] for row in rows[:30]} == {"Registry"}
    assert [row["value"] for row in rows[30:]] == ["000000006378", "plain", "null"]
    rows, _ = streamed(guarded, "avro", filter='.value.status == "bad" and .value.id > 20')
    assert [row["offset"] for row in rows] == [27, 24, 21]
    page = visitor.get("/console/topics/avro/messages/0/30?vf=registry")
    assert "schema id 99 is not in the schema registry of this broker" in page.words


def test_values_are_decoded_by_a_protobuf_file(guarded: Broker, visitor: Visitor) -> None:
    values = [
        b"\x08" + bytes([number]) + b"\x12\x02e" + b"%d" % (number % 10) for number in range(9)
    ]
    write(guarded, "files", values)
    page = visitor.get("/console/topics/files/messages?order=oldest")
    assert '{"id":3,"name":"e3"}' in page.words
    rows, _ = streamed(guarded, "files", filter='.value.name == "e4"')
    assert [row["offset"] for row in rows] == [4]


def test_messagepack_text_and_hexadecimal(guarded: Broker) -> None:
    packed = msgspec.msgpack.encode({"id": 5, "tags": ["é", None]})
    number = struct.pack("<d", -1.5)
    write(guarded, "mixed", [packed, number, b'{"id": 5}', b"id 5", None])
    rows, _ = streamed(guarded, "mixed", order="oldest")
    kinds = ["MessagePack", "hex", "JSON", "text", "null"]
    assert [row["value_kind"] for row in rows] == kinds
    assert json.loads(rows[0]["value"]) == {"id": 5, "tags": ["é", None]}
    rows, _ = streamed(guarded, "mixed", vf="msgpack", filter=".value.id == 5")
    assert [row["offset"] for row in rows] == [0]
    rows, _ = streamed(guarded, "mixed", vf="hex", order="oldest")
    assert [row["value"] for row in rows[:2]] == [packed.hex(), number.hex()]
    rows, _ = streamed(
        guarded, "mixed", vf="hex", filter=f'.value | contains("{number.hex()[:6]}")'
    )
    assert [row["offset"] for row in rows] == [1]
    rows, _ = streamed(guarded, "mixed", vf="json", order="oldest")
    assert [row["value_kind"] for row in rows] == ["hex", "hex", "JSON", "hex", "null"]


def test_protected_fields_are_shown_as_a_reader_without_keys_gets_them(
    guarded: Broker, visitor: Visitor, tmp_path: Path
) -> None:
    place = KeyPlace(ring=tmp_path / "keys")
    keys = FileKeyRing.create(place.ring, master_keys(place.master_place))
    rules: Mapping[str, Encrypt | Mask] = {
        "sealed": Encrypt(subject="key", text=True),
        "masked": Mask(kind="email"),
    }
    with guarded.client() as client:
        for topic, rule in rules.items():
            client.create_topic(topic, 1)
            table = pa.table({"key": ["c17"], "value": ["someone@example.org"]})
            encoder = FieldEncoder(keys, {"value": rule})
            ProtectedClient(client, encoder).write_arrow(topic, table)
    keys.close()
    [record] = stored(guarded, "sealed")
    page = visitor.get("/console/topics/sealed/messages/0/0")
    assert record.value().hex() in page.words.replace(" ", "")
    assert "someone" not in page.text
    masked = visitor.get("/console/topics/masked/messages").words
    assert "s***@example.org" in masked
    assert "someone" not in masked


# Transactions


def test_records_of_aborted_transactions_are_shown_on_request(guarded: Broker) -> None:
    with guarded.client() as client:
        client.create_topic("transactions", 1)
    producer = Producer({"bootstrap.servers": guarded.bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    for value, commits in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce("transactions", value)
        producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    for order in ("newest", "oldest"):
        rows, _ = streamed(guarded, "transactions", order=order)
        assert [row["value"] for row in rows] == ["committed"]
        rows, _ = streamed(guarded, "transactions", order=order, isolation="uncommitted")
        assert sorted(row["value"] for row in rows) == ["aborted", "committed"]


# Rights


def test_reading_and_writing_need_their_rights(guarded: Broker) -> None:
    anonymous, alice = Visitor(guarded.admin_url), Visitor(guarded.admin_url, "alice")
    paths = ("messages", "messages/stream", "messages/export", "messages/0/0", "messages/0/0/key")
    with guarded.client() as client:
        client.create_acls([allow("describe", "topic", "many", "alice")])
        for path in (*paths, "messages/live"):
            assert alice.get(f"/console/topics/many/{path}").status == 403
        client.create_acls([allow("read", "topic", "many", "alice")])
        for path in paths:
            assert alice.get(f"/console/topics/many/{path}").status == 200
        assert alice.get("/console/topics/many/produce").status == 403
        assert "Produce" not in alice.get("/console/topics/many/messages").words
        client.create_topic("theirs", 1)
        client.create_acls([allow("write", "topic", "theirs", "alice")])
    sent = alice.post("/console/topics/theirs/produce", {"value": "mine"})
    assert sent.message == "The record was written to partition 0 at offset 0."
    assert [record.value() for record in stored(guarded, "theirs")] == [b"mine"]
    fields = {"value-encoding": "same", "source-partition": "0", "source-offset": "0"}
    refused = alice.post("/console/topics/theirs/produce", fields)
    assert refused.status == 403
    assert len(stored(guarded, "theirs")) == 1
    assert anonymous.get("/console/topics/theirs/messages/0/0").status == 200


# Produce


def test_a_record_is_produced_as_given(guarded: Broker, visitor: Visitor) -> None:
    with guarded.client() as client:
        client.create_topic("produced", 3)
    page = visitor.post(
        "/console/topics/produced/produce",
        {
            "key": " k\r\n", "key-encoding": "text", "value": "00ff 01", "value-encoding": "hex",
            "headers": "a: 1\r\nb:", "partition": "2",
        },
    )  # fmt: skip
    assert page.url.endswith("/console/topics/produced/messages/2/0")
    assert page.message == "The record was written to partition 2 at offset 0."
    visitor.post("/console/topics/produced/produce", {"value-encoding": "null", "key": "key-1"})
    first, second = stored(guarded, "produced", 3)
    assert (first.key(), first.value()) == (b" k\n", b"\0\xff\1")
    assert first.headers() == [("a", b"1"), ("b", b"")]
    assert second.value() is None
    reference = Producer({"bootstrap.servers": guarded.bootstrap, "partitioner": "murmur2_random"})
    reference.produce("produced", b"", key=b"key-1", on_delivery=lambda _, sent: sides.append(sent))
    sides: list[Message] = []
    reference.flush(30)
    assert second.partition() == sides[0].partition()


def test_wrong_fields_are_explained_and_kept(visitor: Visitor) -> None:
    for fields, message in (
        ({"value": "xyz", "value-encoding": "hex"}, "Value: this is not hexadecimal"),
        ({"value": "x", "partition": "9"}, "Partition '9' must be a whole number of at most 2"),
        ({"value": "x", "headers": "novalue"}, "Headers, line 1: 'novalue' must read name: value"),
        ({"value": "x", "value-encoding": "what"}, "must be one of text, hex, base64, null"),
    ):
        page = visitor.post("/console/topics/many/produce", fields)
        assert page.status == 400
        assert message in page.message
        assert fields["value"] in page.text


def test_records_are_produced_again_unchanged(guarded: Broker, visitor: Visitor) -> None:
    before = stored(guarded, "hostile")
    for offset in range(len(HOSTILE)):
        form = visitor.get(f"/console/topics/hostile/produce?partition=0&offset={offset}")
        fields = {
            name: re.search(
                rf'name="{name}".*?<option value="(\w+)" selected', form.text, re.DOTALL
            )
            for name in ("key-encoding", "value-encoding")
        }
        sent = {name: found[1] for name, found in fields.items() if found}
        areas = r'<textarea[^>]*name="(key|value)"[^>]*>\n(.*?)</textarea>'
        texts = re.findall(areas, form.text, re.DOTALL)
        visitor.post(
            "/console/topics/hostile/produce",
            {
                **sent, **{name: html.unescape(text) for name, text in texts},
                "source-partition": "0", "source-offset": str(offset), "headers-encoding": "same",
            },
            page=f"/console/topics/hostile/produce?partition=0&offset={offset}",
        )  # fmt: skip
    after = stored(guarded, "hostile")[len(before) :]
    wanted = [(record.key(), record.value()) for record in before[: len(HOSTILE)]]
    assert [(record.key(), record.value()) for record in after] == wanted


# Export


def test_exports_have_the_records_of_the_list(guarded: Broker) -> None:
    records = stored(guarded, "many", 3)
    where = f"{guarded.admin_url}/console/topics/many/messages/export?order=oldest&rows=2000"
    with urlopen(where) as response:
        lines = [json.loads(line) for line in response]
    assert len(lines) == 2000
    for line, record in zip(lines, records, strict=False):
        assert (line["partition"], line["offset"]) == (record.partition(), record.offset())
        assert line["value"] == json.loads(record.value())
        assert line["key"] == record.key().decode()
        assert line["headers"][1] == {"key": "trace", "value_base64": "/w=="}
    with urlopen(f"{where}&format=parquet") as response:
        table = pq.read_table(io.BytesIO(response.read()))
    assert table.column("value").to_pylist() == [record.value() for record in records[:2000]]
    assert table.column("timestamp").to_pylist() == [r.timestamp()[1] for r in records[:2000]]
    assert [json.loads(text) for text in table.column("decoded").to_pylist()] == [
        json.loads(record.value()) for record in records[:2000]
    ]
    with urlopen(
        f"{guarded.admin_url}/console/topics/hostile/messages/export?order=oldest"
    ) as page:
        hostile = [json.loads(line) for line in page]
    assert hostile[3] == {**hostile[3], "value_base64": "//7DKA=="}


# In the browser


def test_the_list_reads_on_and_keeps_few_elements(window: Window, guarded: Broker) -> None:
    window.url = guarded.admin_url
    page = window.open("/console/topics/many/messages?order=oldest")
    rows = page.locator(".records li")
    expect(rows).to_have_count(50)
    while page.locator("[data-done=true]").count() == 0:
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(20)
    expect(page.locator("[data-state]")).to_contain_text(f"{MANY:,} records")
    page.evaluate("document.querySelector('#export').scrollIntoView()")
    expect(rows.last).to_contain_text("2 / 999")
    assert rows.count() < 150
    rows.last.locator("a").click()
    page.wait_for_url("**/messages/2/999")
    expect(page.locator("pre").first).to_contain_text(f'"id": {MANY - 1}')


def test_the_live_list_pauses_and_continues(window: Window, guarded: Broker) -> None:
    with guarded.client() as client:
        client.create_topic("live", 2)
        window.url = guarded.admin_url
        page = window.open("/console/topics/live/messages")
        state = page.locator("[data-state]")
        page.get_by_role("button", name="Live").click()
        expect(state).to_contain_text("Live: 0 records")
        client.write_arrow("live", pa.table({"value": ["one", "two"]}))
        expect(page.locator(".records li")).to_have_count(2)
        page.get_by_role("button", name="Pause").click()
        expect(state).to_have_text("Paused; 2 records received.")
        client.write_arrow("live", pa.table({"value": ["three"]}))
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".records li")).to_have_count(3)
        client.write_arrow("live", pa.table({"value": ["fast"] * 30_000}))
        expect(state).to_contain_text("left out, because they came too fast")


def test_copying_and_the_search_key(window: Window, guarded: Broker) -> None:
    window.url = guarded.admin_url
    window.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = window.open("/console/topics/hostile/messages/0/5")
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == HOSTILE["direction"].decode()
    page = window.open("/console/topics/many/messages")
    page.keyboard.press("/")
    page.keyboard.type(f".value.id == {MANY - 4}")
    page.keyboard.press("Enter")
    page.wait_for_url("**filter=*")
    expect(page.locator(".records li")).to_have_count(1)


def test_a_search_ends_when_its_client_goes(guarded: Broker) -> None:
    with guarded.client() as client:
        client.create_topic("long", 1)
        table = pa.table({"value": pa.array([b'{"a": 1}'] * 100_000, pa.binary())})
        client.write_arrow("long", table)
    query = quote(".value.a == 2")
    url = f"{guarded.admin_url}/console/topics/long/messages/stream?filter={query}"
    for _ in range(40):  # more than may be under way at a time
        with urlopen(url) as response:
            assert response.status == 200
    assert streamed(guarded, "long", filter=".value.a == 2")[1]["done"]["records"] == 100_000


def test_requests_at_once_do_not_exceed_the_limit_of_streams(guarded: Broker) -> None:
    place = urlsplit(guarded.admin_url)
    connections = [HTTPConnection(str(place.hostname), place.port, timeout=30) for _ in range(40)]
    for connection in connections:
        connection.request("GET", "/console/topics/many/messages/live")
    statuses = Counter(connection.getresponse().status for connection in connections)
    for connection in connections:
        connection.close()
    assert statuses == {200: STREAMS_MAX, 429: len(connections) - STREAMS_MAX}


# Other kinds of topics


def shows(broker: Broker, topic: str, records: set[tuple[int, int, str]]) -> bool:
    """Whether the list of a topic has these records: partition, offset and value of each."""
    rows, last = streamed(broker, topic, order="oldest")
    assert last["failures"] == {}
    return {(row["partition"], row["offset"], row["value"]) for row in rows} == records


def test_partitions_of_other_brokers_and_diskless_topics(postgres_url: str, tmp_path: Path) -> None:
    shared = {"control.url": postgres_url, "diskless.storage.url": tmp_path.as_uri()}
    with (
        Broker({**shared, "node.id": 1}) as one,
        Broker({**shared, "node.id": 2}) as two,
        one.client() as client,
    ):
        client.create_topic("spread", 4)
        client.create_topic("stored", 2, {"diskless.enable": "true"})
        table = pa.table(
            {"key": [f"{n}" for n in range(200)], "value": [f"{n}" for n in range(200)]}
        )
        for topic in ("spread", "stored"):
            client.write_arrow(topic, table)
            records = stored(one, topic, 4 if topic == "spread" else 2)
            found = {
                (record.partition(), record.offset(), record.value().decode()) for record in records
            }
            for broker in (one, two):
                # A broker may know the end of a diskless partition only some moments later.
                until(partial(shows, broker, topic, found))
        leaders = {p.leader for p in client.describe_topic("spread").partitions}
        assert leaders == {1, 2}
        for broker, other in ((one, 2), (two, 1)):
            page = Visitor(broker.admin_url).get("/console/topics/spread/messages")
            assert f"Read from other brokers: 2 partitions from broker {other} ." in page.words
        for partition in range(4):
            fields = {"value": f"to {partition}", "partition": str(partition)}
            page = Visitor(one.admin_url).post("/console/topics/spread/produce", fields)
            assert f"written to partition {partition}" in page.message
