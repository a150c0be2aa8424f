"""Protected columns in pipelines: on real topics and tables, through replays and shredding."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.base.document import DocumentInvalid
from penstock.security.data import (
    Encrypt,
    FieldEncoder,
    Mask,
    ProtectedClient,
    open_value,
    ring_at,
    seal_value,
    token,
)
from penstock.security.data.file_ring import FileKeyRing, KeyPlace
from penstock.security.data.master_keys import master_keys
from penstock.spark.pipeline.analysis import plan, problems
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.progress import described
from penstock.spark.pipeline.replay.backfill import Backfill
from penstock.spark.pipeline.replay.refusals import Start
from penstock.spark.pipeline.runner import QueryFailed
from tests.security.data.test_masks import CASES
from tests.spark.pipeline.conftest import Pipeline
from tests.spark.pipeline.test_batches import header

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture
def ring(tmp_path: Path) -> FileKeyRing:
    """A keyring at `keys`, beside the pipeline's file."""
    place = KeyPlace(ring=tmp_path / "keys")
    FileKeyRing.create(place.ring, master_keys(place.master_place)).close()
    return ring_at(place)


@pytest.mark.parametrize(("mask", "cases"), CASES, ids=lambda one: getattr(one, "kind", ""))
def test_sparks_masks_show_what_arrows_do(
    spark: SparkSession, mask: Mask, cases: dict[str, str]
) -> None:
    frame = spark.createDataFrame(pa.table({"a `b`": [*cases, None]}))
    column = frame.selectExpr(mask.in_sql("`a ``b```")).toArrow().column(0)
    assert column.to_pylist() == [*cases.values(), None]


ORDERS = [
    {"id": 1, "customer": 17, "mail": "someone@example.org", "note": "by the back door"},
    {"id": 2, "customer": 18, "mail": "nobody", "note": "ünder the mat"},
    {"id": 3, "customer": 17, "mail": None, "note": None},
    {"id": 4, "customer": None, "mail": "x@example.org", "note": "whose?"},
]


def protecting(pipeline: Pipeline, name: str, orders: str, out: str) -> str:
    """A pipeline whose table and topic have no column in clear but `id` and `customer`."""
    return f"""
        name = "{name}-{pipeline.number}"
        [run]
        trigger = "once"
        keys = "keys"
        [source.orders]
        topic = "{orders}"
        format = "json"
        schema = "id bigint, customer int, mail string, note string"
        [source.orders.expect]
        "has an address" = {{ that = "coalesce(mail, '@') like '%@%'", otherwise = "warn" }}
        [step.safe]
        sql = "select id, customer, cast(customer as string) as who, mail, note from orders"
        [step.safe.protect]
        mail = {{ by = "mask", kind = "email" }}
        who = {{ by = "tokenize", field = "customer" }}
        note = {{ by = "encrypt", subject = "customer" }}
        [sink.lake]
        from = "safe"
        table = "{name}"
        [sink.out]
        from = "safe"
        topic = "{out}"
        [errors]
        on_invalid = "fail"
    """


def opening(pipeline: Pipeline, name: str, topic: str, dead: str) -> str:
    """A pipeline that reads what the other one wrote."""
    return f"""
        name = "{name}-{pipeline.number}"
        [run]
        trigger = "once"
        keys = "keys"
        [source.safe]
        topic = "{topic}"
        format = "json"
        schema = "id bigint, customer int, note binary"
        protect.note = {{ by = "decrypt", subject = "customer" }}
        [source.safe.expect]
        "not too long" = "length(coalesce(note, '')) < 100"
        [sink.clear]
        from = "safe"
        table = "{name}"
        [errors]
        dead_letters = "{dead}"
    """


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.long
def test_columns_are_protected_on_their_way_and_clear_at_its_end(
    pipeline: Pipeline, ring: FileKeyRing
) -> None:
    orders, out, dead = pipeline.topic("orders", 2), pipeline.topic("out"), pipeline.topic("dead")
    pipeline.send(orders, ORDERS)
    state = pipeline.run(protecting(pipeline, "lake", orders, out))["orders"]
    # Rules see clear values.
    assert state.counts["warned.has an address"] == 1
    rows = by_id(pipeline.rows("lake"))
    assert [row["mail"] for row in rows] == ["s***@example.org", "***", None, "***"]
    seventeen, eighteen = (token(ring, "customer", value) for value in (b"17", b"18"))
    assert [row["who"] for row in rows] == [seventeen, eighteen, seventeen, None]
    sealed = [row["note"] for row in rows]
    assert [None if note is None else type(note) for note in sealed] == [bytes, bytes, None, None]
    assert open_value(ring, "17", sealed[0]) == b"by the back door"
    assert open_value(ring, "18", sealed[1]) == "ünder the mat".encode()
    assert not any(b"door" in record["value"] for record in pipeline.records(out))

    counts = pipeline.run(opening(pipeline, "clear", out, dead))["safe"].counts
    assert (counts["written.clear"], counts.get("shredded", 0)) == (4, 0)
    assert [row["note"] for row in by_id(pipeline.rows("clear"))] == [
        "by the back door", "ünder the mat", None, None,
    ]  # fmt: skip

    # Shredded, it is null wherever it is read again: what was encrypted, and what was in clear.
    assert ring.shred("17")
    again = pipeline.run(opening(pipeline, "again", out, dead))["safe"]
    assert again.counts["shredded"] == described(again)["shredded"] == 1
    assert [row["note"] for row in by_id(pipeline.rows("again"))] == [
        None, "ünder the mat", None, None,
    ]  # fmt: skip
    pipeline.run(protecting(pipeline, "replayed", orders, out))
    replayed = by_id(pipeline.rows("replayed"))
    assert [row["note"] is None for row in replayed] == [True, False, True, True]
    assert [row["who"] for row in replayed] == [seventeen, eighteen, seventeen, None]
    assert pipeline.records(dead) == []


def test_what_does_not_decrypt_is_rejected_with_its_reason(
    pipeline: Pipeline, ring: FileKeyRing
) -> None:
    out, dead = pipeline.topic("out"), pipeline.topic("dead")
    good, theirs = (seal_value(ring, subject, b"note") or b"" for subject in ("17", "18"))
    bad = [good[:-1] + bytes([good[-1] ^ 1]), theirs, b"in clear"]
    notes = [
        None if note is None else base64.b64encode(note).decode() for note in (good, *bad, None)
    ]
    values = [{"id": at, "customer": 17, "note": note} for at, note in enumerate(notes)]
    pipeline.send(out, [*values, b"not json"])
    counts = pipeline.run(opening(pipeline, "judged", out, dead))["safe"].counts
    assert [row["note"] for row in by_id(pipeline.rows("judged"))] == ["note", None]
    assert counts["rejected.undecodable"] == counts["dead_letters"] == 4
    reasons = [header(record, "reason") for record in pipeline.records(dead)]
    assert reasons[:3] == [
        "note: it is damaged: its tag does not match",
        "note: it was encrypted for another subject",
        "note: it has 8 bytes, but an encrypted value has at least 37",
    ]


@pytest.mark.long
def test_a_clients_values_are_decrypted_by_the_records_key(
    pipeline: Pipeline, ring: FileKeyRing
) -> None:
    topic = pipeline.topic("notes")
    encoder = FieldEncoder(ring, {"value": Encrypt(subject="key")})
    table = pa.table({"key": ["a17", "b2"], "value": [b"\xff\x00", b"text"]})
    ProtectedClient(pipeline.client, encoder).write_arrow(topic, table)
    text = f"""
        name = "notes-{pipeline.number}"
        [run]
        trigger = "once"
        keys = "keys"
        master_key = "keys/master.key"
        [source.notes]
        topic = "{topic}"
        [source.notes.protect.value]
        by = "decrypt"
        subject = "_record.key -- as the client did"
        gives = "bytes"
        [sink.clear]
        from = "notes"
        table = "clear"
        [errors]
        on_invalid = "fail"
    """
    pipeline.run(text)
    assert sorted(row["value"] for row in pipeline.rows("clear")) == [b"text", b"\xff\x00"]
    for was, now in (
        ('gives = "bytes"', ""),
        ('name = "notes', 'name = "texts'),
        ('"clear"', '"texts"'),
    ):
        text = text.replace(was, now)
    with pytest.raises(QueryFailed, match='it is not UTF-8: set gives = "bytes"'):
        pipeline.run(text)


@pytest.mark.long
def test_a_source_is_protected_before_a_stateful_step(
    pipeline: Pipeline, ring: FileKeyRing
) -> None:
    topic = pipeline.topic("clicks")
    pipeline.send(
        topic,
        [{"user": f"u{n % 3}", "at": f"2026-01-01T00:{n:02}:00Z"} for n in range(30)]
        + [{"user": "last", "at": "2026-01-02T00:00:00Z"}],
    )
    pipeline.run(f"""
        name = "clicks-{pipeline.number}"
        [run]
        trigger = "once"
        keys = "keys"
        [source.clicks]
        topic = "{topic}"
        format = "json"
        schema = "user string, at timestamp"
        time = "at"
        delay = "1 minute"
        protect.user = "tokenize"
        [step.counted]
        sql = "select window(at, '1 hour').start as start, user, count(*) as n from clicks \
group by window(at, '1 hour'), user"
        [sink.counted]
        from = "counted"
        table = "counted"
        [errors]
        on_invalid = "drop"
    """)
    found = {row["user"]: row["n"] for row in pipeline.rows("counted")}
    assert found == {token(ring, "user", f"u{n}".encode()): 10 for n in range(3)}


@pytest.mark.long
def test_a_sink_that_joined_later_gets_protected_rows(
    pipeline: Pipeline, ring: FileKeyRing
) -> None:
    orders, out = pipeline.topic("orders"), pipeline.topic("out")
    pipeline.send(orders, ORDERS)
    text = protecting(pipeline, "first", orders, out)
    pipeline.run(text)
    ring.shred("18")
    text += '[sink.later]\nfrom = "safe"\ntable = "later"\n'
    pipeline.run(text)
    Backfill(pipeline.write(text), pipeline.spark, "later").run(Start(), by="ada")
    rows = by_id(pipeline.rows("later"))
    assert [row["note"] is None for row in rows] == [False, True, True, True]
    assert open_value(ring, "17", rows[0]["note"]) == b"by the back door"


def test_keys_are_not_in_spark_plans(
    pipeline: Pipeline, ring: FileKeyRing, spark: SparkSession
) -> None:
    """The native function has them there, which is why it is not used."""
    text = protecting(pipeline, "planned", pipeline.topic("orders"), pipeline.topic("out"))
    shown = json.dumps([query.explain for query in plan(pipeline.write(text), spark).queries])
    assert "penstock_encrypt(note" in shown
    assert ring._secret.hex() not in shown.lower()
    key = "000102030405060708090a0b0c0d0e0f"
    native = spark.range(1).selectExpr(f"aes_encrypt('x', '{key}', 'GCM') as x")
    assert key in native._jdf.queryExecution().toString()


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (None, "No such file or directory"),
        (0o755, "its mode 0755 gives other users access. Run: chmod 0700"),
    ],
)
def test_a_ring_that_cannot_be_used_ends_the_start(
    pipeline: Pipeline, mode: int | None, said: str
) -> None:
    if mode is not None:
        place = KeyPlace(ring=pipeline.folder / "keys")
        FileKeyRing.create(place.ring, master_keys(place.master_place)).close()
        place.ring.chmod(mode)
    text = protecting(pipeline, "refused", pipeline.topic("orders"), pipeline.topic("out"))
    with pytest.raises(DocumentInvalid, match=said) as caught:
        pipeline.run(text)
    [problem] = caught.value.problems
    assert (problem.where, problem.line) == ("run.keys", 5)


UNFIT = """\
[run]
keys = "keys"
[source.orders]
topic = "orders"
format = "json"
schema = "id bigint, at timestamp, note string, sealed binary"
[source.orders.protect]
id = "mask"
missing = "mask"
at = "tokenize"
sealed = { by = "decrypt", subject = "nobody" }
note = { by = "encrypt", subject = "at" }
[source.orders.expect]
"rules see what it was" = "sealed = 'text' and length(note) > 1"
[step.safe]
sql = "select id, note from orders"
[step.safe.protect]
note = { by = "encrypt", subject = "id +" }
_record = "mask"
[sink.out]
from = "safe"
console = true
[errors]
on_invalid = "drop"
"""


def test_rejected_protections_are_reported_at_once(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(UNFIT)
    found = {
        problem.line: str(problem).partition(": ")[2] for problem in problems(load(file), spark)
    }
    assert found.keys() == {8, 9, 10, 11, 12, 18, 19}
    assert found[8] == (
        "source.orders.protect.id: is bigint, but mask requires string; cast it in an earlier step"
    )
    assert "there is no column missing; there are id, at, note, sealed" in found[9]
    assert "is timestamp, but tokenize requires string or binary or" in found[10]
    assert "source.orders.protect.sealed.subject: [UNRESOLVED_COLUMN" in found[11]
    assert "note.subject: is timestamp, but a subject requires string or" in found[12]
    assert "step.safe.protect.note.subject: [PARSE_SYNTAX_ERROR]" in found[18]
    assert "there is no column _record" in found[19]


def test_protected_columns_have_other_types_behind_their_view(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "p.toml"
    text = (
        UNFIT.partition("[source.orders.protect]")[0]
        + """\
[source.orders.protect]
id = "tokenize"
sealed = { by = "decrypt", subject = "id" }
note = { by = "encrypt", subject = "id" }
[source.orders.expect]
"rules see clear values" = "sealed = 'text' and length(note) > 1 and id > 5"
[step.safe]
sql = "select id || 'x' as id, aes_decrypt(note, 'k') as note, sealed || 'x' as sealed from orders"
[sink.out]
from = "safe"
console = true
[errors]
on_invalid = "drop"
"""
    )
    file.write_text(text)
    assert problems(load(file), spark) == ()
