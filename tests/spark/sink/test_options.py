"""The sink's options: what is refused, by name, and where defaults come from."""

from __future__ import annotations

import pytest

from penstock.records import Codec
from penstock.spark.errors import InvalidOption
from penstock.spark.sink.options import check, parse

ADDRESSES = {"bootstrap": "127.0.0.1:9092", "penstock.admin.url": "http://127.0.0.1:9644/"}


def test_reads_every_option_in_any_case() -> None:
    found = parse(
        {
            "Kafka.Bootstrap.Servers": "a:1,b:2",
            "PENSTOCK.ADMIN.URL": "http://a:9644/",
            "Topic": "orders",
            "kafka.compression.type": "LZ4",
            "batchbytes": "2000000",
            "application": "nightly/orders",
            "batchId": "20260101",
            "commitTimeoutSeconds": "7.5",
            "checkpointLocation": "/somewhere",
        }
    )
    assert found.bootstrap == "a:1,b:2"
    assert found.admin_url == "http://a:9644"
    assert (found.topic, found.codec, found.batch_bytes) == ("orders", Codec.LZ4, 2_000_000)
    assert (found.application, found.batch_id) == ("nightly/orders", 20260101)
    assert found.commit_timeout_seconds == 7.5


@pytest.mark.parametrize(
    ("given", "named", "said"),
    [
        ({"topics": "a"}, "topics", "no such option. Its options: bootstrap, penstock"),
        ({"orderedBy": "at"}, "orderedBy", "LogSink"),
        ({"codec": "brotli"}, "codec", "none, gzip, snappy, lz4, zstd"),
        ({"topic": "a b"}, "topic", "ASCII letters"),
        ({"batchBytes": "10"}, "batchBytes", "from 1024"),
        ({"batchBytes": "much"}, "batchBytes", "whole number"),
        ({"batchId": "1"}, "batchId", "application"),
        ({"application": "a", "batchId": "-1"}, "batchId", "whole number"),
        ({"application": "a b"}, "application", "249"),
        ({"application": ""}, "application", "1 to"),
        ({"commitTimeoutSeconds": "0"}, "commitTimeoutSeconds", "from 1"),
        ({"commitTimeoutSeconds": "nan"}, "commitTimeoutSeconds", "from 1"),
        ({"transactional": "perhaps"}, "transactional", "true or false"),
        ({"commitTimeoutSeconds": "soon"}, "commitTimeoutSeconds", "number of seconds"),
        ({"kafka.bootstrap.servers": "other:1"}, "bootstrap", "already set to another value"),
    ],
)
def test_refuses_by_name(given: dict[str, str], named: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as caught:
        parse({**ADDRESSES, **given})
    assert named in str(caught.value)


def test_says_why_the_admin_address_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_ADMIN_URL", raising=False)
    with pytest.raises(InvalidOption, match="Apache Kafka has no such address"):
        check(bootstrap="127.0.0.1:9092", admin_url=None)
    for wrong in ("127.0.0.1:9092", "http://127.0.0.1:9092/"):  # the Kafka listener
        with pytest.raises(InvalidOption, match="http://host:9644"):
            check(bootstrap="a:1, 127.0.0.1:9092", admin_url=wrong)


def test_takes_the_addresses_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "c:3")
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "http://c:9644")
    found = parse({})
    assert (found.bootstrap, found.admin_url) == ("c:3", "http://c:9644")
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP")
    with pytest.raises(InvalidOption, match="HOST:PORT"):
        parse({})
