"""Keys of tokens from servers that do not behave, over real TLS: the former keys stay."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.base.system import SYSTEM_CLOCK
from penstock.security import jwks
from penstock.security.files import UnusableFile
from penstock.security.jwks import TokenVerifier, loader
from penstock.security.tokens import InvalidKeys, TokenRules, parse_key_set
from tests.security.certificates import truststore
from tests.security.exchanges import key_set, signing_key
from tests.security.key_server import HEAD, answering

GOOD = key_set(k1=signing_key("EC"))


def slowly(*pieces: bytes) -> Iterator[bytes]:
    for piece in pieces:
        time.sleep(0.05)
        yield piece


def test_a_good_server(tmp_path: Path) -> None:
    with answering(tmp_path, lambda: iter([HEAD % len(GOOD), GOOD])) as url:
        load = loader(url, truststore(tmp_path), SYSTEM_CLOCK)
        assert parse_key_set(load()).keys[0][0] == "k1"


def test_authorities_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"none\.pem cannot be read: No such file"):
        loader("https://localhost/keys", str(tmp_path / "none.pem"), SYSTEM_CLOCK)
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(UnusableFile, match=r"empty\.pem has no certificates in PEM"):
        loader("https://localhost/keys", str(tmp_path / "empty.pem"), SYSTEM_CLOCK)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [b"SSH-2.0-OpenSSH_9.6\r\n"],
        [b"HTTP/1.1 two hundred\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{}"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n"],
        [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000],
        [b"HTTP/1.1 302 Found\r\nLocation: https://localhost/else\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\n\r\n", b" " * (1 << 20)],
        [b'HTTP/1.1 200 OK\r\n\r\n{"keys": [{"kty": []}]}'],
    ],
)
def test_answers_that_are_none(tmp_path: Path, answer: Sequence[bytes]) -> None:
    with answering(tmp_path, lambda: iter(answer)) as url:
        load = loader(url, truststore(tmp_path), SYSTEM_CLOCK)
        verifier = TokenVerifier(TokenRules(), load, refresh_seconds=60, clock=SYSTEM_CLOCK)
        verifier.refresh()
        assert (verifier.loads.succeeded, verifier.loads.failed) == (0, 1)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_server_that_never_ends(
    tmp_path: Path, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "CONNECT_SECONDS", 0.5)
    drip = b"X" if head else b"H"
    with answering(tmp_path, lambda: slowly(head, *itertools.repeat(drip, 400))) as url:
        load = loader(url, truststore(tmp_path), SYSTEM_CLOCK)
        began = time.monotonic()
        with pytest.raises((InvalidKeys, OSError)):
            load()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": []},
        {"kty": {}},
        {"kty": "EC", "crv": {}},
        {"kty": "RSA", "key_ops": 5},
        {"kty": "RSA", "key_ops": None},
        {"kty": "OKP", "crv": None},
    ],
)
def test_keys_of_other_types_than_text(entry: dict[str, object]) -> None:
    with pytest.raises(InvalidKeys):
        parse_key_set(json.dumps({"keys": [entry]}).encode())
