"""Flags over environment over file, and errors that say where a value came from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.process.configuration import (
    Given,
    InvalidConfiguration,
    LocationSettings,
    configure,
    dotted,
    known_names,
    misspelt,
    parse_override,
    read_environment,
)
from penstock.apps.process.wiring import store_options, url_signer
from penstock.broker.configuration.settings import BrokerSettings


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('"num.partitions" = 2\nnode.id = 7\n[log]\nretention.ms = 1000\ndirs = "d"\n')
    found = configure(file=file, environment={}, flags={})
    assert (found.broker.num_partitions, found.broker.node_id) == (2, 7)
    assert (found.broker.log_retention_ms, found.directory) == (1000, Path("d"))
    environment = {"KAFKA_NUM_PARTITIONS": "3", "PENSTOCK_LOG_DIRS": "e"}
    found = configure(file=file, environment=environment, flags={})
    assert (found.broker.num_partitions, found.directory) == (3, Path("e"))
    environment["PENSTOCK_NUM_PARTITIONS"] = "4"
    assert configure(file=file, environment=environment, flags={}).broker.num_partitions == 4
    flags = dict([parse_override("num.partitions=5")])
    found = configure(file=file, environment=environment, flags=flags)
    assert found.broker.num_partitions == 5


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('\n"num.partitions" = 0\n', r"num.partitions = 0: must be at least 1 \(.*, line 2\)"),
        ('[num]\npartitions = "x"\n', r"num.partitions = 'x': must be a whole .*line 2"),
        ("[num]\npartition = 1\n", r"num.partition \(.*line 2.*did you mean num.partitions"),
        ("a = \n", r"penstock.toml: .*line 1"),
        ("log.flush.policy = 'often'", "must be one of group, interval, os"),
        ("group.min.session.timeout.ms = 2000000", "must not exceed"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfiguration, match=match):
        configure(file=file, environment={}, flags={})


def test_all_mistakes_are_reported_together() -> None:
    flags = {
        "log.retention.msec": Given("1", "flag -X"),
        "node.id": Given("-1", "flag -X"),
        "log.roll.hours": Given("soon", "flag -X"),
    }
    with pytest.raises(InvalidConfiguration) as raised:
        configure(file=None, environment={"KAFKA_NUM_PARTITIONS": "0"}, flags=flags)
    said = str(raised.value)
    assert "did you mean log.retention.ms?" in said
    assert "setting node.id = '-1': must be at least 0 (flag -X)" in said
    assert "setting log.roll.hours = 'soon': must be a whole number (flag -X)" in said
    assert "num.partitions = '0': must be at least 1 (environment variable" in said


def test_other_origins_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="environment variable KAFKA_NODE_ID"):
        configure(file=None, environment={"KAFKA_NODE_ID": "-2"}, flags={})
    with pytest.raises(InvalidConfiguration, match="flag --listener"):
        configure(file=None, environment={}, flags={"node.id": Given("x", "flag --listener")})
    with pytest.raises(InvalidConfiguration, match="No such file"):
        configure(file=tmp_path / "none", environment={}, flags={})
    with pytest.raises(InvalidConfiguration, match="key=value"):
        parse_override("node.id")


def test_settings_of_apache_kafka_are_accepted_with_a_note(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        'zookeeper.connect = "localhost:2181"\nnum.io.threads = 8\n'
        '"sasl.kerberos.service.name" = "kafka"\n'
    )
    found = configure(file=file, environment={}, flags={})
    assert len(found.notes) == 3
    first = "setting zookeeper.connect = 'localhost:2181': it has no effect: metadata is stored in"
    assert found.notes[0].startswith(first)
    assert found.notes[0].endswith(f"({file}, line 1)")


@pytest.mark.parametrize("name", ["ssl.cipher.suites.x", "principal.builder.class", "broker.id"])
def test_settings_whose_neglect_would_do_harm_are_refused(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="there is no setting of this name"):
        configure(file=None, environment={}, flags={name: Given("x", "flag -X")})


def test_foreign_variables_are_left_alone() -> None:
    assert read_environment({"KAFKA_HEAP_OPTS": "-Xmx1g", "PENSTOCK_PROFILE": "x"}) == {}
    assert misspelt({"KAFKA_NODE_IDD": "2", "PENSTOCK_PROFILE": "x", "PENSTOCK_NODE_ID": "3"}) == []
    assert misspelt({"PENSTOCK_NUM_PARTITION": "2"}) == [
        "environment variable PENSTOCK_NUM_PARTITION is not a setting;"
        " did you mean PENSTOCK_NUM_PARTITIONS?"
    ]


def test_the_container_mapping() -> None:
    assert dotted("LOG_RETENTION_MS") == "log.retention.ms"
    assert dotted("A__B_C___D") == "a_b.c-d"


@given(st.sampled_from(sorted(known_names())))
def test_every_setting_has_a_variable(name: str) -> None:
    words = name.replace("_", "__").replace("-", "___").replace(".", "_").upper()
    assert dotted(words) == name


def test_locations_of_diskless_topics(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[diskless.storage]\nurl = "s3://bucket/place"\noptions = ["aws_region=x"]\n'
        "[diskless]\ncommit.interval.ms = 7\n"
        "[diskless.consume.cache]\nmax.bytes = 99999999\n"
    )
    environment = {"PENSTOCK_CONTROL_URL": "postgresql://user@somewhere/metadata"}
    found = configure(file=file, environment=environment, flags={})
    assert found.locations.control_url == "postgresql://user@somewhere/metadata"
    assert found.locations.diskless_storage_url == "s3://bucket/place"
    assert found.locations.diskless_storage_options == ("aws_region=x",)
    assert found.diskless.commit_interval_ms == 7
    assert found.fetching.cache_bytes_max == 99999999


def test_store_options_of_a_file_and_one_by_one(tmp_path: Path) -> None:
    secrets = tmp_path / "store.options"
    secrets.write_text("# of the bucket\naws_secret_access_key = a=b==\naws_region=file\n\n")
    locations = LocationSettings(
        diskless_storage_options_file=str(secrets), diskless_storage_options=("aws_region=given",)
    )
    assert store_options(locations) == {"aws_secret_access_key": "a=b==", "aws_region": "given"}
    assert store_options(LocationSettings()) == {}


@pytest.mark.parametrize(
    ("authoriser", "word", "url", "keys", "signs", "told"),
    [
        ("acls", "auto", "s3://bucket", True, True, False),
        ("acls", "true", "s3://bucket", True, True, False),
        ("acls", "false", "s3://bucket", True, False, False),
        ("", "auto", "s3://bucket", True, False, False),
        ("acls", "auto", "s3://bucket", False, False, True),
        ("acls", "auto", "gs://bucket", True, False, True),
        ("acls", "auto", "file:///place", True, False, False),
    ],
)
def test_the_signer_of_extent_urls(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    authoriser: str,
    word: str,
    url: str,
    keys: bool,
    signs: bool,
    told: bool,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "word") if keys else monkeypatch.delenv(name, raising=False)
    settings = BrokerSettings(authorizer_class_name=authoriser, extents_direct_files_enable=word)
    options = {"aws_region": "r"} if url.startswith("s3") else {}
    assert (url_signer(settings, url, options) is not None) == signs
    assert (f"URLs of objects cannot be signed: {url}: " in caplog.text) == told


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        ("a=1\nsecret\n", (), r"store.options, line 2: an option must read name=value"),
        ("=x\n", (), "line 1: an option must"),
        ("", ("plain",), "diskless.storage.options: an option must read"),
        (None, (), "diskless.storage.options.file .*No such file"),
    ],
)
def test_wrong_store_options_are_named_without_their_values(
    tmp_path: Path, text: str | None, options: tuple[str, ...], match: str
) -> None:
    secrets = tmp_path / "store.options"
    if text is not None:
        secrets.write_text(text)
    locations = LocationSettings(
        diskless_storage_options_file=str(secrets), diskless_storage_options=options
    )
    with pytest.raises(InvalidConfiguration, match=match) as raised:
        store_options(locations)
    assert "secret" not in str(raised.value)
