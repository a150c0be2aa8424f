"""Messages of a real server, decoded whole, in chunks of any size, and damaged."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connect.postgresql.pgoutput import (
    Chunk,
    Decoder,
    MalformedChange,
    Truncation,
    lsn_number,
    lsn_text,
)
from tests.connect.postgresql.bed import database
from tests.postgres import PostgresServer

STATEMENTS = (
    "INSERT INTO a SELECT i, 'text ' || i, NULL FROM generate_series(1, 7) AS i",
    "INSERT INTO b VALUES (1, repeat(md5('x'), 2)), (2, 'ü€😀'), (3, NULL)",
    "UPDATE a SET t = NULL WHERE id < 3",
    "UPDATE a SET id = 100 WHERE id = 4",
    "BEGIN; UPDATE b SET t = 'y'; DELETE FROM a WHERE id = 5; INSERT INTO a VALUES (5, '', '{}');"
    " SAVEPOINT s; DELETE FROM b WHERE id = 2; RELEASE s; COMMIT",
    "ALTER TABLE a ADD COLUMN more int DEFAULT 7",
    "UPDATE a SET big = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i)"
    " WHERE id = 6",
    "UPDATE a SET more = 8 WHERE id = 6",
    "TRUNCATE a, b",
    "INSERT INTO b VALUES (9, 'last')",
)
Recorded = tuple[list[bytes], list[int]]
CHANGED = b"BCRIUDT"
"""Letters of messages that the decoder reads."""


@pytest.fixture(scope="module")
def recorded(logical: PostgresServer) -> Recorded:
    """Messages of a slot and their positions."""
    with logical.database() as name, database(logical.url(name)) as sql:
        sql("CREATE TABLE a (id int PRIMARY KEY, t text, big text)")
        sql("CREATE TABLE b (id int, t text)")
        sql("ALTER TABLE b REPLICA IDENTITY FULL")
        sql("CREATE PUBLICATION p FOR TABLE a, b")
        sql("SELECT pg_create_logical_replication_slot('recorded', 'pgoutput')")
        for statement in STATEMENTS:
            sql(statement)
        rows = sql(
            "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes('recorded', NULL, NULL,"
            " 'proto_version', '2', 'publication_names', 'p', 'messages', 'true')"
        )
        sql("SELECT pg_drop_replication_slot('recorded')")
    return [bytes(data) for _, data in rows], [lsn_number(lsn) for lsn, _ in rows]


def flat(chunk: Chunk) -> list[Any]:
    """Return the changes of a chunk in the order of the log."""
    found = []
    for change in chunk.changes:
        for row in range(len(change.moments.index)):
            moment = change.moments.take(row)
            name = change.relation.name
            facts = (moment.lsn, moment.commit_lsn, moment.before, moment.xid, moment.number)
            order = int(moment.index)
            if isinstance(change, Truncation):
                found.append((order, name, "T", *map(int, facts)))
                continue
            texts = [column[row].as_py() for column in (*change.old, *change.new)]
            unsent = [mask is not None and bool(mask[row]) for mask in change.unchanged]
            letters = (int(change.letters[row]), int(change.olds[row]))
            found.append((order, name, letters, texts, unsent, *map(int, facts)))
    return [facts[1:] for facts in sorted(found, key=lambda facts: facts[:2])]


def decoded(recorded: Recorded, cuts: Sequence[int]) -> tuple[list[Any], int]:
    """Return the changes of chunks between cuts, and the last end of a transaction."""
    messages, lsns = recorded
    decoder, found, end = Decoder(), [], 0
    bounds = [0, *cuts, len(messages)]
    for low, high in itertools.pairwise(bounds):
        chunk = decoder.decode(messages[low:high], lsns[low:high])
        found += flat(chunk)
        end = chunk.end_lsn or end
    return found, end


def test_changes_are_those_that_were_made(recorded: Recorded) -> None:
    found, end = decoded(recorded, [])
    letters = [facts[1] if facts[1] == "T" else chr(facts[1][0]) for facts in found]
    assert "".join(letters) == "I" * 10 + "UU" + "U" + "UUUDID" + "U" + "U" + "TT" + "I"
    assert found[-1][2] == [None, None, "9", "last"]
    assert found[12][2] == ["4", None, None, "100", "text 4", None]
    unsent = next(facts for facts in found if facts[1] != "T" and any(facts[3]))
    assert (unsent[2][4:], unsent[3]) == (["6", "text 6", None, "8"], [False, False, True, False])
    assert [facts[-1] for facts in found[13:19]] == list(range(6))
    ends = sorted({facts[-3] for facts in found if facts[-3]})
    assert ends[-1] < end  # each transaction knows the end of the one before


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_chunks_of_any_size_give_the_same_changes(recorded: Recorded, data: st.DataObject) -> None:
    places = st.lists(st.integers(0, len(recorded[0])), max_size=len(recorded[0]))
    cuts = sorted(data.draw(places))
    assert decoded(recorded, cuts) == decoded(recorded, [])


def test_messages_cut_at_every_byte_are_malformed(recorded: Recorded) -> None:
    messages, lsns = recorded
    decoder, tried = Decoder(), 0
    for index, (message, lsn) in enumerate(zip(messages, lsns, strict=True)):
        if message[0] in CHANGED:
            last = len(message) if len(message) < 400 else 400
            for size in range(last):
                following = messages[index + 1 : index + 2]
                with pytest.raises(MalformedChange):
                    copy.deepcopy(decoder).decode(
                        [message[:size], *following], [lsn] * (1 + len(following))
                    )
                tried += 1
        decoder.decode([message], [lsn])
    assert tried > 1_000


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_messages_are_decoded_or_malformed(recorded: Recorded, data: st.DataObject) -> None:
    messages, lsns = recorded
    index = data.draw(st.integers(0, len(messages) - 1))
    damaged = bytearray(messages[index])
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedChange):
        Decoder().decode([*messages[:index], bytes(damaged), *messages[index + 1 :]], lsns)


@given(st.integers(0, 2**64 - 1))
def test_positions_have_postgresqls_form(number: int) -> None:
    assert lsn_number(lsn_text(number)) == number
    assert lsn_text(0x16B3748) == "0/16B3748"
