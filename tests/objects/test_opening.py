"""Stores that URLs name, and URLs that are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import InvalidSetting
from penstock.objects import (
    DirectoryStore,
    MemoryStore,
    StoreUnavailable,
    is_local,
    open_store,
    place_of,
)
from tests.ports import free_port


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
def test_invalid_urls_are_rejected(url: str) -> None:
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


def test_an_option_of_the_http_client_is_refused_without_showing_its_value() -> None:
    with pytest.raises(InvalidSetting, match="aws_allow_http belongs to") as raised:
        open_store("s3://bucket", options={"aws_allow_http": "secret"})
    assert "secret" not in str(raised.value)


def test_which_are_local() -> None:
    assert is_local("file:///x")
    assert is_local("memory://x")
    assert not is_local("s3://bucket")


@pytest.mark.parametrize(
    "url", ["https://user:SECRET@b/p?sig=SECRET", "file://u:SECRET@host/p", "s3://u:SECRET@"]
)
def test_a_refused_url_is_shown_without_credentials(url: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        open_store(url)
    assert "SECRET" not in str(raised.value)


async def test_errors_of_a_remote_store_show_no_credentials() -> None:
    url = "s3://user:SECRET@bucket/prefix?sig=SECRET"
    options = {"aws_endpoint": f"http://127.0.0.1:{free_port()}", "aws_region": "r"}
    store = open_store(url, options={**options, "aws_skip_signature": "true"})
    with pytest.raises(StoreUnavailable) as raised:
        await store.head("key")
    await store.close()
    assert str(raised.value).startswith("s3://bucket/prefix: cannot look at key: ")
    assert "SECRET" not in str(raised.value)


def test_a_place_has_the_endpoint_that_was_given() -> None:
    options = {"aws_region": "r", "aws_endpoint": "http://u:secret@127.0.0.1:9000", "aws_key": "k"}
    assert place_of("s3://u@b/p?sig=x", options) == "s3://b/p at http://127.0.0.1:9000"
    assert place_of("file:///data") == "file:///data"
