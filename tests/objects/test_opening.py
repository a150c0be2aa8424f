"""Which store a URL names, and which names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import InvalidSetting
from penstock.objects import (
    DirectoryStore,
    MemoryStore,
    is_local,
    open_store,
    place_of,
    without_credentials,
)


async def test_a_directory(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/a%20b")
    assert isinstance(store, DirectoryStore)
    assert store.root == tmp_path / "a b"
    assert (tmp_path / "a b").is_dir()
    await store.close()


async def test_memory_is_shared_by_name() -> None:
    one, same, other = (open_store(f"memory://{name}") for name in ("x", "x", "y"))
    assert isinstance(one, MemoryStore)
    assert one is same
    await one.put("a", [b"1"])
    assert [info.key async for info in same.list("")] == ["a"]
    assert [info.key async for info in other.list("")] == []


@pytest.mark.parametrize(
    "url",
    ["", "x", "/tmp/x", "http://127.0.0.1/x", "ftp://x/y", "file://relative/x", "file://", "s3://"],
)
def test_what_names_no_store(url: str) -> None:
    with pytest.raises(InvalidSetting, match=r"diskless\.storage\.url"):
        open_store(url)


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "gs://bucket/p", "az://container/p"])
async def test_remote_stores_are_opened_without_asking_them(url: str) -> None:
    options = {"azure_storage_account_name": "account"} if url.startswith("az") else {}
    store = open_store(url, options=options)
    await store.close()


def test_an_option_that_is_none_is_refused_without_showing_its_value() -> None:
    with pytest.raises(InvalidSetting, match="aws_no_such_thing") as raised:
        open_store("s3://bucket", options={"aws_no_such_thing": "secret"})
    assert "secret" not in str(raised.value)


def test_which_are_local() -> None:
    assert is_local("file:///x")
    assert is_local("memory://x")
    assert not is_local("s3://bucket")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3://user:word@bucket/prefix?sig=secret#x", "s3://bucket/prefix"),
        ("file:///data/a%20b", "file:///data/a%20b"),
        ("", ""),
    ],
)
def test_a_stores_url_is_told_without_credentials(url: str, told: str) -> None:
    assert without_credentials(url) == told


def test_a_place_has_the_endpoint_that_was_given() -> None:
    options = {"aws_region": "r", "aws_endpoint": "http://u:secret@127.0.0.1:9000", "aws_key": "k"}
    assert place_of("s3://u@b/p?sig=x", options) == "s3://b/p at http://127.0.0.1:9000"
    assert place_of("file:///data") == "file:///data"
