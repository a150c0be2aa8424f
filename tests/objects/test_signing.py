"""Signatures equal botocore's, and the signer is the one that obstore uses."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.auth import S3SigV4QueryAuth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from penstock.objects import StoreRefused, signer_of
from penstock.objects.signing import range_header

KEYS = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "secret-word"}
REGION = {"aws_region": "eu-north-1"}
AT_ENDPOINT = {**KEYS, **REGION, "aws_endpoint": "http://127.0.0.1:9000"}
ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("token", ["", "a/token+of=some~kind"])
@pytest.mark.parametrize("key", ["wal/07/x", "a=b/-._/c", "k" * 200])
@pytest.mark.parametrize(("start", "size_bytes"), [(0, 1), (24, 4 << 20), (1 << 40, 7)])
def test_signatures_are_those_of_botocore(
    key: str, start: int, size_bytes: int, token: str
) -> None:
    options = AT_ENDPOINT | ({"aws_session_token": token} if token else {})
    signer = signer_of("s3://bucket/some/place", options, {})
    auth = S3SigV4QueryAuth(
        Credentials("AKIA", "secret-word", token or None), "s3", "eu-north-1", expires=90
    )
    plain = signer.signing(now_ms=0, lifetime_ms=90_000).url(key, start, size_bytes)
    request = AWSRequest(
        "GET", plain.partition("?")[0], headers={"Range": range_header(start, size_bytes)}
    )
    auth.add_auth(request)
    theirs = parse_qs(urlsplit(request.url).query)
    assert theirs["X-Amz-SignedHeaders"] == ["host;range"]
    at = datetime.strptime(theirs["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    signing = signer.signing(now_ms=int(at.timestamp() * 1000) + 999, lifetime_ms=90_999)
    assert signing.expires_ms == int(at.timestamp() + 90) * 1000
    assert parse_qs(urlsplit(signing.url(key, start, size_bytes)).query) == theirs


def test_a_signature_is_of_one_range_of_one_object() -> None:
    signing = signer_of("s3://bucket", AT_ENDPOINT, {}).signing(now_ms=1, lifetime_ms=60_000)
    wanted = [("a", 0, 5), ("a", 0, 6), ("a", 1, 5), ("b", 0, 5)]
    assert len({signing.url(*parts).rpartition("=")[2] for parts in wanted}) == len(wanted)


@pytest.mark.parametrize(
    ("url", "options", "origin", "path"),
    [
        (
            "s3://bucket/some/place",
            {},
            "https://s3.eu-north-1.amazonaws.com",
            "/bucket/some/place/",
        ),
        ("s3a://bucket", {}, "https://s3.eu-north-1.amazonaws.com", "/bucket/"),
        (
            "s3://bucket/place",
            {"virtual_hosted_style_request": "true"},
            "https://bucket.s3.eu-north-1.amazonaws.com",
            "/place/",
        ),
        ("s3://bucket", {"endpoint": "http://10.0.0.7:9000"}, "http://10.0.0.7:9000", "/bucket/"),
    ],
)
def test_objects_are_where_the_store_has_them(
    url: str, options: dict[str, str], origin: str, path: str
) -> None:
    signer = signer_of(url, {**KEYS, **REGION, **options}, {})
    assert (signer.origin, signer.path, signer.region) == (origin, path, "eu-north-1")


def test_keys_may_be_named_in_all_ways_that_the_store_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = signer_of("s3://bucket", {**KEYS, **REGION}, {})
    short = {"access_key_id": "AKIA", "SECRET_ACCESS_KEY": "secret-word"}
    assert signer_of("s3://bucket", {**short, **REGION}, {}) == expected
    environment = {name.upper(): value for name, value in KEYS.items()}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert signer_of("s3://bucket", REGION, environment) == expected
    other = signer_of("s3://bucket", {**KEYS, **REGION, "aws_access_key_id": "B"}, environment)
    assert other.access_key_id == "B"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("gs://bucket", {}, "only for S3"),
        ("az://container", {"account_name": "a"}, "only for S3"),
        ("s3://bucket", REGION, "instance metadata"),
    ],
)
def test_unsupported_credentials_are_rejected(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(StoreRefused, match=said) as caught:
        signer_of(url, options, {})
    assert url in str(caught.value)


def test_a_secret_that_is_not_the_stores_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {name.upper(): value for name, value in KEYS.items()}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    others = {**environment, "AWS_SECRET_ACCESS_KEY": "another-word"}
    with pytest.raises(StoreRefused, match="instance metadata") as caught:
        signer_of("s3://bucket", REGION, others)
    assert "word" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    options = {**AT_ENDPOINT, "aws_session_token": "token-word"}
    signer = signer_of("s3://bucket", options, {})
    shown = repr(signer) + repr(signer.signing(now_ms=1, lifetime_ms=60_000))
    assert "word" not in shown
