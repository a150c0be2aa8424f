"""Masking by role: rules, fields of documents, and no way around the masks in any response."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.apps.console.messages.columns import json_texts
from penstock.apps.console.messages.parameters import FORMATS
from penstock.apps.console.messages.rules import Masking, MaskingInvalid
from penstock.apps.console.messages.spans import Documents, Spans, outermost
from penstock.base.errors import PenstockError
from penstock.security import ANONYMOUS, Principal
from penstock.testing import Broker
from tests.apps.console.test_messages import framed
from tests.apps.console.visitor import SECONDS, Visitor, guarded_broker
from tests.broker.security.secured import PASSWORD
from tests.security.access import allow

pytestmark = pytest.mark.timeout(120)

AVRO: Final = {
    "type": "record",
    "name": "Outer",
    "fields": [
        {"name": "a", "type": {"type": "record", "name": "Inner", "fields": [
            {"name": "b", "type": ["null", "string"]}]}},
    ],
}  # fmt: skip
PROTO: Final = 'syntax = "proto3"; message A { string b = 1; } message M { A a = 1; }'
RULES: Final = """
[roles]
staff = ["User:alice"]

[rules.card]
topics = ["{topics}"]
fields = {fields}
{mask}
clear = ["staff"]
"""


class Site(NamedTuple):
    """Broker with masking, and the files that a test changes."""

    broker: Broker
    rules: Path
    schemas: Path

    def rule(self, topics: str, mask: str, *fields: str) -> None:
        """Replace the rules by one, which does not mask for alice."""
        text = RULES.format(topics=topics, mask=mask, fields=json.dumps(fields))
        replace(self.rules, text)


def replace(path: Path, text: str) -> None:
    """Replace a file at once, as an editor does."""
    copy = path.with_suffix(".new")
    copy.write_text(text)
    copy.replace(path)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("masking")
    schemas, rules = directory / "schemas", directory / "masking.toml"
    schemas.mkdir()
    replace(rules, RULES.format(topics="none", mask="hide = true", fields='[".value"]'))
    settings = {
        "registry.enable": True,
        "registry.listener": "127.0.0.1:0",
        "console.schema.directory": str(schemas),
        "console.masking.file": str(rules),
    }
    with guarded_broker(directory, settings) as broker:
        with broker.client() as client:
            client.create_acls([
                allow(operation, "topic", "*", user)
                for user in ("alice", "bob")
                for operation in ("read", "write", "describe")
            ] + [allow("describe", "cluster", "kafka-cluster", "bob")])  # fmt: skip
        yield Site(broker, rules, schemas)


def answer(broker: Broker, user: str, path: str) -> tuple[int, bytes]:
    """Return status and body of a response; of a stream of events, its first event."""
    credentials = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    request = Request(
        f"{broker.admin_url}{path}", headers={"authorization": f"Basic {credentials}"}
    )
    try:
        with urlopen(request, timeout=SECONDS) as response:
            if "/live?" not in path:
                return response.status, response.read()
            lines = b""
            while not lines.endswith(b"\n\n") or b"data:" not in lines:
                lines += response.readline()
            return response.status, lines
    except HTTPError as error:
        with error:
            return error.code, error.read()


def rows_of(broker: Broker, user: str, topic: str, **parameters: str) -> list[dict[str, Any]]:
    query = urlencode({"order": "oldest", **parameters})
    status, body = answer(broker, user, f"/console/topics/{topic}/messages/stream?{query}")
    assert status == 200, body
    lines = [json.loads(line) for line in body.splitlines()]
    assert "done" in lines[-1], lines[-1]
    return [row for line in lines for row in line.get("rows", ())]


class Sent(NamedTuple):
    """Record, whose headers have a secret too."""

    secret: str
    key: bytes | None
    value: bytes | None


def send(broker: Broker, topic: str, records: Sequence[Sent], partitions: int = 1) -> None:
    with broker.client() as client:
        client.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, record in enumerate(records):
        secret = record.secret.encode()
        headers = [("token", secret), ("other", b"x"), ("token", b"\xff" + secret), ("token", None)]
        producer.produce(
            topic, record.value, record.key, number % partitions, timestamp=1_700_000_000_000,
            headers=headers,
        )  # fmt: skip
        producer.flush(SECONDS)


# Rules


def test_all_problems_of_a_file_are_reported_with_line_name_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "masking.toml"
    file.write_text(
        """[roles]
staff = ["alice"]
[rules.card]
topic = ["orders"]
fields = [".value.items[0].id", ".size", ".value ==", ".headers"]
mask = "cards"
first = 2
clear = ["stuff"]
[rules.note]
topics = ["or*ders"]
fields = [".value"]
mask = "all"
hide = true
[rule.x]
"""
    )
    with pytest.raises(MaskingInvalid) as caught:
        Masking(str(file))
    lines = str(caught.value).splitlines()
    assert lines[0] == "console.masking.file has problems:"
    form = re.compile(r"^.*masking.toml:(\d+): ([^:]+): .*; (.*)$")
    assert [form.sub(r"\1 \2: \3", line) for line in lines[1:]] == [
        "2 roles.staff.1: write User:NAME, or add it to [roles]",
        "3 rules.card.topics: write topics = [\"orders\"]",
        "4 rules.card.topic: write topics",
        "5 rules.card.fields.1: leave the index out: a path enters all elements of arrays",
        "5 rules.card.fields.2: write a path into .key, .value or .headers",
        "5 rules.card.fields.3: write a path, such as .value.customer.id",
        "5 rules.card.fields.4: write a path, such as .value.customer.id",
        "6 rules.card.mask: write one of all, keep, email, card, phone",
        '7 rules.card.first: write a whole number from 0 to 1000 beside mask = "keep"',
        "8 rules.card.clear.1: write staff",
        "9 rules.note: write either hide = true, or mask = \"KIND\" with all, keep, email, card,"
        " phone",
        "10 rules.note.topics.1: end it with *, as in orders.*, or write the whole name",
        "14 rule: write rules",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file has no rules"),
        ("a = ", "nvalid value"),
        ("rules = 1", "must be a table, but"),
    ],
)
def test_a_broker_does_not_start_with_an_invalid_file(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "masking.toml"
    file.write_text(text)
    with (
        pytest.raises(PenstockError, match=message),
        Broker({"console.masking.file": str(file)}),
    ):
        pass


def test_rules_apply_by_topic_and_principal(tmp_path: Path) -> None:
    file = tmp_path / "masking.toml"
    file.write_text(
        """
[roles]
fraud = ["User:alice", "User:carol"]
[rules.card]
topics = ["payments", "orders.*"]
fields = [".value.card"]
mask = "card"
clear = ["fraud", "User:dave"]
[rules.all]
topics = ["*"]
fields = [".key"]
hide = true
clear = ["User:carol"]
"""
    )
    masking = Masking(str(file))

    def names(topic: str, principal: Principal) -> list[str]:
        return [rule.name for rule in masking.rules(topic, principal)]

    for user, expected in (("alice", ["all"]), ("carol", []), ("dave", ["all"])):
        assert names("payments", Principal("User", user)) == expected
    for topic in ("payments", "orders.eu"):
        assert (
            names(topic, ANONYMOUS) == names(topic, Principal("Group", "alice")) == ["all", "card"]
        )
    assert names("orders", ANONYMOUS) == names("payments2", ANONYMOUS) == ["all"]


# Fields of documents

NAMES: Final = st.sampled_from(["a", "b", "c", 'd"{', "é\\"])
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just('x"},:[{\\'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
MARK: Final = "\0masked"


def walked(value: Any, names: Sequence[str]) -> Any:
    """Return a value whose fields at a path, or other values in their place, are replaced."""
    if isinstance(value, list) and names:
        return [walked(item, names) for item in value]
    if not isinstance(value, dict) or not names:
        return MARK
    return {
        name: walked(item, names[1:]) if name == names[0] else item for name, item in value.items()
    }


@given(
    st.lists(st.lists(VALUES, max_size=3) | st.dictionaries(NAMES, VALUES), max_size=6),
    st.lists(NAMES, min_size=1, max_size=3),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_fields_are_replaced_as_a_walk_through_the_values_does(
    values: list[Any], names: list[str], indent: int | None, ascii_only: bool
) -> None:
    texts = [json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode() for value in values]
    documents = Documents(json_texts(pa.array([b"none", *texts, None], pa.binary())))
    found = documents.find(names)
    order = outermost(found)
    spans = Spans(found.starts[order], found.ends[order])
    marks = pa.array([json.dumps(MARK)] * len(order), pa.string())
    made = documents.replaced(spans, marks).to_pylist()
    assert made[0] == made[-1] == b""
    assert [json.loads(text) for text in made[1:-1]] == [walked(value, names) for value in values]


# Secrets in responses


def shapes(secret: str) -> list[bytes]:
    """Return values with a secret at `.value.a.b`."""
    quoted, escaped = f'"{secret}"', '"' + "".join(f"\\u{ord(c):04x}" for c in secret) + '"'
    packed = msgspec.msgpack.encode
    inner = b"\x0a" + bytes([len(secret)]) + secret.encode()
    texts = [
        f'{{"a": {{"b": {quoted}, "c": "}},{{\\""}}}}',
        f'{{"a":[1,{{"b":{quoted}}},[{{"b":[{quoted}]}}],null]}}',
        f'[{{"a":{{"b":{{"x":{quoted}}}}}}}]',
        f' {{"\\u0061":{{"b":{escaped}}},"n":null}}',
        f'{{"a":{{"b":{quoted},"b":1}}}}',
        f'{{"a":{{"b":1}},"a":{{"b":{quoted}}}}}',
        f'{{"a":{{"b":{quoted}}}',
        f'{{"a":{{"b":1}}}},"x":{{"b":{quoted}}}',
        f'{{"a":1}}\n{{"a":{{"b":{quoted}}}}}',
        f'{{"a":{quoted}}}',
        f'{{"a":[{quoted},"{{\\"b\\":\\"{secret}\\"}}"]}}',
        f"[[{quoted}],{{}}]",
        f'"{{\\"a\\":{{\\"b\\":\\"{secret}\\"}}}}"',
        secret,
    ]
    return [
        *(text.encode() for text in texts),
        packed({"a": {"b": secret}}),
        packed({"a": {"b": secret.encode()}, 1: [None]}),
        packed({"a": [{"b": secret}], "c": 1.5}),
        b"\xff" + secret.encode(),
        b"\0\0\0\0\x63" + secret.encode(),
        b"\x0a" + bytes([len(inner)]) + inner + b"\x7a" + inner[1:],
    ]


KINDS: Final = ("all", "email", "card", "phone")
MASKS: Final = st.sampled_from(
    ["hide = true", *(f'mask = "{kind}"' for kind in KINDS)]
) | st.builds('mask = "keep"\nfirst = {}\nlast = {}'.format, st.integers(0, 3), st.integers(0, 3))
SHAPES: Final = len(shapes("x" * 12))
FIELDS: Final = st.tuples(
    st.sampled_from([".value", ".value.a", ".value.a.b"]),
    st.sampled_from([".key", ".key.a", ".key.a.b"]),
    st.just(".headers.token"),
)
NUMBERS: Final = count()


def pieces(secret: str) -> list[bytes]:
    """Return a secret in the notations in which a response could have it."""
    raw = secret.encode()
    coded = [base64.b64encode(b"x" * pad + raw)[4:-4] for pad in range(3)]
    escapes = "".join(f"\\u{byte:04x}" for byte in raw).encode()
    return [raw, raw.hex().encode(), raw[:8].hex(" ").encode(), escapes, *coded]


def leaks(body: bytes, secrets: Sequence[str]) -> list[str]:
    """Return the secrets that a response has in some notation."""
    if body[:4] == b"PAR1":
        body = repr(pq.read_table(io.BytesIO(body)).to_pylist()).encode()
    return [secret for secret in secrets if any(piece in body for piece in pieces(secret))]


def paths_of(topic: str, formats: Iterable[str], secret: str, offset: int) -> Iterator[str]:
    """Yield the paths of all pages that show a topic's records."""
    base = f"/console/topics/{topic}"
    for name in formats:
        query = urlencode({"kf": name, "vf": name, "message": "M"})
        yield f"{base}/messages?{query}"
        yield f"{base}/messages/stream?{query}&order=oldest"
        yield f"{base}/messages/0/{offset}?{query}&all=1"
        yield f"{base}/messages/0/{offset}/value?{query}&as=text"
    for side in ("key", "value"):
        yield f"{base}/messages/0/{offset}/{side}"
    yield f"{base}/messages/export?format=jsonl"
    yield f"{base}/messages/export?format=parquet"
    different = urlencode({"filter": f'.value != "{secret[:4]}"'})
    yield f"{base}/messages/live?cursor=0.0&{different}"
    yield f"{base}/produce?partition=0&offset={offset}"
    yield f"/console/planner/keys?topic={topic}"
    yield base


def secrets_of(seed: int, count: int) -> list[str]:
    """Return different texts of 12 to 28 characters, of which no two have a part in common."""
    digests = [sha256(f"{seed} {number}".encode()).digest() for number in range(count)]
    return [base64.b32encode(digest)[: 12 + digest[0] % 16].decode() for digest in digests]


CASES: Final = given(
    mask=MASKS, fields=FIELDS, seed=st.integers(0, 1 << 32), at=st.integers(0, SHAPES - 1)
)


@CASES
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
def test_no_response_has_a_secret_that_rules_mask(
    site: Site, mask: str, fields: tuple[str, ...], seed: int, at: int
) -> None:
    check_secrets(site, mask, fields, seed, at)


@pytest.mark.long
@pytest.mark.timeout(900)
@CASES
@settings(max_examples=30, deadline=None, phases=[Phase.generate])
def test_no_response_has_a_secret_in_many_cases(
    site: Site, mask: str, fields: tuple[str, ...], seed: int, at: int
) -> None:
    check_secrets(site, mask, fields, seed, at)


def check_secrets(site: Site, mask: str, fields: Sequence[str], seed: int, at: int) -> None:
    """Check that bob's responses have no secret of any topic, and that alice's have them."""
    number = next(NUMBERS)
    formats = {"json": [*FORMATS], "protobuf": ["auto", "protobuf"], "avro": ["hex", "registry"]}
    topics = {kind: f"m{number}.{kind}" for kind in formats}
    (site.schemas / f"{topics['protobuf']}-value.proto").write_text(PROTO)
    site.rule(f"m{number}.*", f'{mask}\nmessage = "M"', *fields)
    secrets = secrets_of(seed, SHAPES + 3)
    records = [
        Sent(secret, shapes(secret)[(row + 3) % SHAPES], shapes(secret)[row])
        for row, secret in enumerate(secrets[:SHAPES])
    ]
    coded = framed_avro(site.broker, topics["avro"], secrets[SHAPES:])
    for kind, topic in topics.items():
        send(site.broker, topic, [*records, *coded] if kind == "avro" else records)
        for path in paths_of(topic, formats[kind], secrets[at], at):
            status, body = answer(site.broker, "bob", path)
            assert status in (200, 400, 403), (path, body)
            assert leaks(body, secrets) == [], path
        for test in oracles(secrets[at], secrets[-1]):
            assert rows_of(site.broker, "bob", topic, **test) == []
    audit = (site.rules.parent / "audit.log").read_bytes()
    assert topics["json"].encode() in audit
    assert leaks(audit, secrets) == []
    clear = answer(site.broker, "alice", f"/console/topics/{topics['json']}/messages/export")[1]
    assert set(leaks(clear, secrets)) == set(secrets[:SHAPES])
    body = json.dumps(rows_of(site.broker, "alice", topics["avro"])).encode()
    assert set(leaks(body, secrets)) >= {record.secret for record in coded}
    for kind, row in (("json", 0), ("protobuf", SHAPES - 1), ("avro", SHAPES + 1)):
        text = f'.value.a.b == "{secrets[row]}" or .value.a.b.string == "{secrets[row]}"'
        found = rows_of(site.broker, "alice", topics[kind], filter=text, message="M")
        assert [record["offset"] for record in found] == [row]


def framed_avro(broker: Broker, topic: str, secrets: Sequence[str]) -> list[Sent]:
    values = framed(broker, topic, [{"a": {"b": secret}} for secret in secrets], AVRO)
    return [Sent(secret, None, value) for secret, value in zip(secrets, values, strict=True)]


def oracles(*secrets: str) -> Iterator[dict[str, str]]:
    """Yield searches that find a record only if they see its secret."""
    for secret in secrets:
        part = secret[3:-3]
        for side, paths in (("vf", (".value.a.b", ".value")), ("kf", (".key.a.b", ".key"))):
            tests = [
                term
                for path in (*paths, ".headers.token")
                for term in (
                    f'{path} == "{secret}"',
                    f'({path} | contains("{part}"))',
                    f'({path} | test("(?i){part}"))',
                    f'({path} | contains("{part.encode().hex()}"))',
                )
            ]
            for name in ("auto", "hex", "text"):
                yield {"filter": " or ".join(tests), side: name}
        yield {"key": secret}
        yield {"key": part, "match": "contains"}


def test_filters_do_not_tell_records_apart_that_look_alike(site: Site) -> None:
    site.rule("twins", 'mask = "all"', ".value.a.b", ".key", ".headers.token")
    secrets = ["secret-one", "zz-a-much-longer-secret-of-another-size"]
    send(
        site.broker,
        "twins",
        [
            Sent(secret, secret.encode(), json.dumps({"a": {"b": secret}, "id": 7}).encode())
            for secret in secrets
        ],
        partitions=2,
    )
    seen = rows_of(site.broker, "bob", "twins")
    assert [row | {"partition": 0} for row in seen] == [seen[0]] * 2
    assert json.loads(seen[0]["value"]) == {"a": {"b": "***"}, "id": 7}
    size = seen[0]["size_bytes"]
    tests = [
        *(f".size {sign} {size + change}" for sign in ("<", ">", "==") for change in (-1, 0, 1)),
        *(f'{path} {sign} "secret-p"' for path in (".value.a.b", ".key", ".headers.token")
          for sign in ("<", ">=", "==", "!=")),
        *(f'{path} | test("^.{{3}}$")' for path in (".value.a.b", ".key", ".headers.token")),
        '.value | contains("secret")', "not (.value | test(\"one\"))", '.key | startswith("z")',
        ".value.id == 7", ".value.a.b", ".value.a.b == \"***\"", ".value.a.b > 5",
    ]  # fmt: skip
    for test in tests:
        found = rows_of(site.broker, "bob", "twins", filter=test)
        assert len(found) in (0, 2), test
    assert len(rows_of(site.broker, "bob", "twins", filter='.value.a.b == "***"')) == 2
    assert len(rows_of(site.broker, "alice", "twins", filter='.value | contains("one")')) == 1
    assert len(rows_of(site.broker, "alice", "twins", filter=f".size < {size}")) == 0


def test_masks_show_what_their_kinds_allow(site: Site) -> None:
    value = {"card": 4111111111111234, "cards": [{"card": "4111 1111 1111 1234"}], "on": True}
    send(site.broker, "kinds", [Sent("t", b"k", json.dumps(value).encode()), Sent("t", None, None)])
    site.rule("kinds", 'mask = "card"', ".value.card", ".value.cards.card", ".value.on", ".key")
    rows = rows_of(site.broker, "bob", "kinds")
    masked = {"card": "****1234", "cards": [{"card": "****1234"}], "on": "***"}
    assert json.loads(rows[0]["value"]) == masked
    assert [row["key"] for row in rows] == ["***", "null"]
    assert [row["value_kind"] for row in rows] == ["JSON", "null"]
    site.rule("kinds", "hide = true", ".value", ".key")
    rows = rows_of(site.broker, "bob", "kinds")
    assert [(row["key"], row["value"]) for row in rows] == [("***", "***")] * 2


def test_pages_explain_what_is_masked_and_have_no_way_around(site: Site) -> None:
    send(site.broker, "paid", [Sent("hidden-token", b"key", b'{"card": "4111111111111234"}')])
    site.rule("paid", 'mask = "card"', ".value.card", ".headers.token")
    bob, alice = (Visitor(site.broker.admin_url, user) for user in ("bob", "alice"))
    base = "/console/topics/paid"
    reason = ".value.card : masked by rule card of console.masking.file"
    for path in ("messages", "messages/0/0"):
        page = bob.get(f"{base}/{path}")
        assert "Some fields are masked for you." in page.words
        assert reason in page.words
        assert reason not in alice.get(f"{base}/{path}").words
    page = bob.get(f"{base}/messages/0/0")
    assert '"card": "****1234"' in page.words
    assert "Produce again" not in page.words
    assert page.text.count("data-copy") == 2
    assert page.text.count('messages/0/0/value" download') == 0
    assert "Produce again" in alice.get(f"{base}/messages/0/0").words
    refused = bob.get(f"{base}/messages/0/0/value")
    assert refused.status == 403
    assert "the bytes of values of topic paid are hidden" in refused.message
    assert answer(site.broker, "bob", f"{base}/messages/0/0/key") == (200, b"key")
    assert json.loads(bob.get(f"{base}/messages/0/0/value?as=text").text) == {"card": "****1234"}
    fields = {"value-encoding": "same", "source-partition": "0", "source-offset": "0"}
    refused = bob.post(f"{base}/produce", {**fields, "headers": "__value_schema_id: 1"})
    assert refused.status == 403
    assert "cannot be produced again: fields are masked by rule card" in refused.message
    assert len(rows_of(site.broker, "alice", "paid")) == 1
    assert bob.post(f"{base}/produce", {"value": "new"}).status == 200
    site.rule("paid", "hide = true", ".key")
    page = bob.get("/console/planner/keys?topic=paid")
    assert "the keys of topic paid cannot be planned: fields are masked by rule card" in page.words
    assert "hidden by rule card" in bob.get(f"{base}/messages").words
    anonymous = Visitor(site.broker.admin_url).get(f"{base}/messages")
    assert "hidden by rule card" in anonymous.words


def test_a_changed_file_applies_at_once_and_a_wrong_one_changes_nothing(site: Site) -> None:
    send(site.broker, "again", [Sent("t", b"key", b'{"a": "first", "b": "second"}')])
    seen = []
    for text in (".value.a", ".value.b"):
        site.rule("again", "hide = true", text)
        seen.append(json.loads(rows_of(site.broker, "bob", "again")[0]["value"]))
    replace(site.rules, "[rules.card]\nfields = 1")
    seen.append(json.loads(rows_of(site.broker, "bob", "again")[0]["value"]))
    first, second = {"a": "***", "b": "second"}, {"a": "first", "b": "***"}
    assert seen == [first, second, second]
    credentials = base64.b64encode(f"bob:{PASSWORD}".encode()).decode()
    request = Request(
        f"{site.broker.admin_url}/console/topics/again/messages/live",
        headers={"authorization": f"Basic {credentials}"},
    )
    with urlopen(request, timeout=SECONDS) as response:
        assert response.readline() == b": connected\n"
        site.rule("again", "hide = true", ".key")
        response.read()  # the list ends, and the browser connects again
    assert rows_of(site.broker, "bob", "again")[0]["key"] == "***"


def test_masked_protobuf_needs_the_message_of_the_rule(site: Site) -> None:
    (site.schemas / "several-value.proto").write_text(f"{PROTO} message N {{ A c = 1; }}")
    send(site.broker, "several", [Sent("t", None, b"\x0a\x06\x0a\x04wxyz")])
    site.rule("several", 'mask = "all"', ".value.a.b")
    for message in ("", "M", "N"):
        rows = rows_of(site.broker, "bob", "several", vf="protobuf", message=message)
        assert [row["value"] for row in rows] == ["***"]
    site.rule("several", 'mask = "keep"\nlast = 1\nmessage = "M"', ".value.a.b")
    for message in ("M", "N"):
        rows = rows_of(site.broker, "bob", "several", message=message)
        assert [json.loads(row["value"]) for row in rows] == [{"a": {"b": "***z"}}]
