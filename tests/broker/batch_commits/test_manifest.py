"""Manifests: accepted ones, positions in refusals, and the stored form."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.broker.batch_commits.manifest import (
    TARGET_RECORDS_MAX,
    InvalidCommit,
    Manifest,
    check_blob_name,
    check_query,
    decode_manifest,
    encode_manifest,
    parse_post,
)

ID = "00000000-0000-0000-0000-00000000000a"


def section(partition: int = 0, position: int = 0, size: int = 100, **more: Any) -> dict[str, Any]:
    return {
        "topic": "t",
        "topic_id": ID,
        "partition": partition,
        "position": position,
        "size_bytes": size,
        "records": 3,
        **more,
    }


def good() -> dict[str, Any]:
    return {
        "owner": "run-1",
        "blobs": [
            {"name": "b-0", "size_bytes": 300, "sections": [section(), section(1, 100, 200)]},
            {"name": "b-1", "size_bytes": 100, "sections": [section(0)]},
        ],
    }


def parse(value: Any) -> tuple[str | None, Manifest]:
    return parse_post(json.dumps(value).encode())


def test_a_good_one_is_read_and_stored() -> None:
    owner, manifest = parse(good())
    assert owner == "run-1"
    assert manifest.names == {"b-0", "b-1"}
    assert manifest.size_bytes == 400
    assert {key.partition: found for key, found in manifest.targets().items()} == {
        0: ("t", 6),
        1: ("t", 3),
    }
    assert decode_manifest(encode_manifest(manifest)) == manifest
    _, transactional = parse(good() | {"transactional": True})
    assert transactional == replace(manifest, transactional=True)
    assert decode_manifest(encode_manifest(transactional)) == transactional


def test_no_blobs_and_no_owner_are_fine() -> None:
    assert parse({"blobs": []}) == (None, Manifest(blobs=()))
    assert parse({"owner": None, "blobs": []})[0] is None
    assert decode_manifest(b"") == Manifest(blobs=())


FIRST: list[tuple[str, Callable[[Any], Any], str]] = [
    ("blobs gone", lambda m: m.pop("blobs"), "blobs"),
    ("owner a number", lambda m: m.update(owner=4), "owner"),
    ("owner too long", lambda m: m.update(owner="x" * 1025), "owner"),
    ("another field", lambda m: m.update(extra=1), "extra"),
    ("blobs no list", lambda m: m.update(blobs={}), "blobs"),
    ("no sections", lambda m: m["blobs"][1].update(sections=[]), "sections"),
    ("named twice", lambda m: m["blobs"][1].update(name="b-0"), "names a blob twice"),
    (
        "larger than its sections",
        lambda m: m["blobs"][1].update(size_bytes=101),
        "sections have 100",
    ),
    ("size negative", lambda m: m["blobs"][1].update(size_bytes=-1), "size_bytes"),
    ("size missing", lambda m: m["blobs"][1].pop("size_bytes"), "size_bytes"),
    ("name missing", lambda m: m["blobs"][1].pop("name"), "name"),
    ("sections missing", lambda m: m["blobs"][1].pop("sections"), "sections"),
]
OF_A_SECTION: list[tuple[str, Any, str]] = [
    ("topic", "", "topic"),
    ("topic", 5, "topic"),
    ("topic", "x" * 250, "topic"),
    ("topic_id", "zz", "not a UUID"),
    ("topic_id", 5, "topic_id"),
    ("partition", -1, "partition"),
    ("partition", 2**31, "partition"),
    ("partition", 1.5, "partition"),
    ("position", 1, "position 1, expected 0"),
    ("position", -1, "position"),
    ("size_bytes", 60, "size_bytes"),
    ("size_bytes", 99, "sections have 99"),
    ("size_bytes", 2**63, "size_bytes"),
    ("records", 0, "records"),
    ("records", TARGET_RECORDS_MAX + 1, "records"),
    ("records", "3", "records"),
    ("records", True, "records"),
]


@pytest.mark.parametrize(
    ("change", "said"), [(c, s) for _, c, s in FIRST], ids=[n for n, _, _ in FIRST]
)
def test_a_malformed_one_is_refused(change: Callable[[Any], Any], said: str) -> None:
    value = good()
    change(value)
    with pytest.raises(InvalidCommit, match=said):
        parse(value)


@pytest.mark.parametrize(("field", "value", "said"), OF_A_SECTION)
def test_every_field_of_a_section_is_checked(field: str, value: Any, said: str) -> None:
    posted = good()
    posted["blobs"][1]["sections"][0][field] = value
    with pytest.raises(InvalidCommit, match=said):
        parse(posted)


@pytest.mark.parametrize("field", list(section()))
def test_every_field_of_a_section_must_be_there(field: str) -> None:
    posted = good()
    del posted["blobs"][1]["sections"][0][field]
    with pytest.raises(InvalidCommit, match=field):
        parse(posted)


def test_sections_of_one_topic_id_name_one_topic() -> None:
    posted = good()
    posted["blobs"][0]["sections"][1]["topic"] = "u"
    with pytest.raises(InvalidCommit, match="has two names, 't' and 'u'"):
        parse(posted)


def test_the_records_of_a_partition_have_a_sum() -> None:
    posted = good()
    for blob in posted["blobs"]:
        blob["sections"][0]["records"] = TARGET_RECORDS_MAX // 2 + 1
    with pytest.raises(InvalidCommit, match=f"limit {TARGET_RECORDS_MAX}"):
        parse(posted)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"blobs": "\\ud800"}', b"[" * 100_000]
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidCommit):
        parse_post(body)


BAD_NAMES = [
    "", ".", "..", ".hidden", ".penstock-staging", "a/b", "../x", "/etc/passwd", "a\\b", "a b", "ä",
    "a\x00", "a\n", "x" * 201,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_cannot_leave_the_directory(name: str) -> None:
    with pytest.raises(InvalidCommit, match="blob name"):
        check_blob_name(name)
    posted = good()
    posted["blobs"][1]["name"] = name
    with pytest.raises(InvalidCommit):
        parse(posted)


@pytest.mark.parametrize("name", ["a", "-", "_.", "A.b-C_9", "x" * 200])
def test_plain_names_are_fine(name: str) -> None:
    assert check_blob_name(name) == name


@pytest.mark.parametrize("query", ["", "x" * 250, "a b", "ä", "a\n", "a%2F"])
def test_bad_queries_are_refused(query: str) -> None:
    with pytest.raises(InvalidCommit, match="query"):
        check_query(query)


def test_queries_may_have_slashes() -> None:
    assert check_query("team/app-1_x.y") == "team/app-1_x.y"


def test_the_stored_form_is_compact() -> None:
    posted = good()
    blob = posted["blobs"][0]
    posted["blobs"] = [{**copy.deepcopy(blob), "name": f"part-{n:05}"} for n in range(2000)]
    _, manifest = parse(posted)
    stored = encode_manifest(manifest)
    assert len(stored) < len(json.dumps(posted)) / 20
    assert decode_manifest(stored) == manifest


@given(st.binary(max_size=200))
def test_a_damaged_stored_form_is_refused(data: bytes) -> None:
    stored = encode_manifest(parse(good())[1])
    for damaged in (b"x" + data, stored[: len(stored) // 2] + data, stored[:-9]):
        if damaged != stored:
            with pytest.raises(InvalidCommit, match="cannot be read"):
                decode_manifest(damaged)
