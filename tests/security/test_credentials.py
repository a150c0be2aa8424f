"""Credentials: RFC 7677's example, the text form and its bounds, and decoys."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.credentials import (
    HASH_BYTES,
    HASHES,
    ITERATIONS,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    PASSWORD_BYTES_MAX,
    PLAIN,
    SALT_BYTES,
    SALT_BYTES_MAX,
    SALT_BYTES_MIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    FileCredentials,
    InvalidCredential,
    ScramCredential,
    Shape,
    credential_of,
    credential_or_decoy,
    derive,
    matches,
    parse_credential,
    salted_password,
)

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PASSWORD = "pencil"
POSTGRES = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
    "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)
"""What is kept of RFC 7677's example."""


def one(mechanism: str = SCRAM_SHA_256) -> ScramCredential:
    return derive(mechanism, PASSWORD, salt=SALT, iterations=ITERATIONS)


def test_the_text_form_is_what_postgresql_keeps() -> None:
    assert one().text() == POSTGRES
    assert parse_credential(POSTGRES + "\n") == one()


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_credential_matches_its_password_alone(mechanism: str) -> None:
    credential = one(mechanism)
    assert parse_credential(credential.text()) == credential
    assert matches(credential, PASSWORD)
    for other in ("Pencil", "pencil ", "", "x" * (PASSWORD_BYTES_MAX + 1)):
        assert not matches(credential, other)


def test_passwords_are_taken_as_they_are_in_utf8() -> None:
    composed, decomposed = "p\u00e4sswort", "pa\u0308sswort"
    credential = derive(SCRAM_SHA_512, composed, salt=SALT, iterations=ITERATIONS)
    assert matches(credential, composed)
    assert not matches(credential, decomposed)


def test_a_salted_password_makes_the_same_credential() -> None:
    salted = salted_password(SCRAM_SHA_512, PASSWORD, SALT, ITERATIONS)
    assert credential_of(SCRAM_SHA_512, salted, salt=SALT, iterations=ITERATIONS) == one(
        SCRAM_SHA_512
    )
    with pytest.raises(InvalidCredential, match="64 bytes, not 63"):
        credential_of(SCRAM_SHA_512, salted[1:], salt=SALT, iterations=ITERATIONS)


def test_repr_and_errors_have_no_secret() -> None:
    credential = one()
    shown = repr(credential)
    for secret in (credential.stored_key, credential.server_key, credential.salt):
        assert repr(secret) not in shown
        assert b64encode(secret).decode() not in shown
    with pytest.raises(InvalidCredential) as refused:
        parse_credential(POSTGRES.replace("=:", ":"))
    assert refused.value.__cause__ is None
    assert "WG5d8o" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pencil",
        "SCRAM-SHA-256",
        "SCRAM-SHA-1" + POSTGRES[13:],
        POSTGRES.replace("4096", "4095"),
        POSTGRES.replace("4096", str(ITERATIONS_MAX + 1)),
        POSTGRES.replace("4096", "9" * 10_000),
        POSTGRES.replace("4096", "-4096"),
        POSTGRES.replace("4096", "٤٠٩٦"),
        POSTGRES.replace("SCRAM-SHA-256", "SCRAM-SHA-512"),
        POSTGRES.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "W22Z"),
        POSTGRES.replace("wfPL", "w?PL"),
        POSTGRES + "AAAA",
        POSTGRES[:-4],
        POSTGRES.partition("$W")[0],
    ],
)
def test_what_is_no_credential_is_refused(text: str) -> None:
    with pytest.raises(InvalidCredential):
        parse_credential(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": "PLAIN"},
        {"iterations": 0},
        {"iterations": ITERATIONS_MAX + 1},
        {"salt": b""},
        {"salt": b"s" * (SALT_BYTES_MAX + 1)},
        {"stored_key": b"k"},
        {"server_key": b"k" * 33},
    ],
)
def test_values_out_of_bounds_are_refused(changes: dict[str, str | int | bytes]) -> None:
    with pytest.raises(InvalidCredential):
        replace(one(), **changes)  # type: ignore[arg-type]


NO_USERS = FileCredentials({})


def decoy(
    secret: bytes, mechanism: str, user: str, kept: FileCredentials = NO_USERS
) -> ScramCredential:
    found, known = credential_or_decoy(kept, mechanism, user, secret)
    assert not known
    return found


SHAPES = st.builds(
    Shape,
    mechanism=st.sampled_from(list(HASHES)),
    salt_bytes=st.integers(SALT_BYTES_MIN, 64),
    iterations=st.integers(ITERATIONS_MIN, ITERATIONS_MAX),
)


def kept_as(shape: Shape) -> ScramCredential:
    key = bytes(HASH_BYTES[shape.mechanism])
    return ScramCredential(
        mechanism=shape.mechanism,
        salt=bytes(shape.salt_bytes),
        iterations=shape.iterations,
        stored_key=key,
        server_key=key,
    )


@given(
    users=st.lists(st.lists(SHAPES, min_size=1, max_size=2), max_size=8),
    mechanism=st.sampled_from([PLAIN, *HASHES]),
    name=st.text(),
)
def test_a_decoy_has_the_shape_of_some_users_credential(
    users: list[list[Shape]], mechanism: str, name: str
) -> None:
    rows = [(at, shape) for at, shapes in enumerate(users) for shape in shapes]
    kept = {(shape.mechanism, f"user-{at}"): kept_as(shape) for at, shape in rows}
    credentials = FileCredentials(kept)
    seen = set()
    for at in range(len(users)):
        found, known = credential_or_decoy(credentials, mechanism, f"user-{at}", b"secret")
        seen |= {found.shape} if known else set()
    assert credentials.shapes(mechanism).keys() == seen
    usual = Shape(SCRAM_SHA_256 if mechanism == PLAIN else mechanism, SALT_BYTES, ITERATIONS)
    found = decoy(b"secret", mechanism, name, credentials)
    assert found == decoy(b"secret", mechanism, name, credentials)
    assert found.shape in (seen or {usual})


def test_decoys_have_the_shapes_in_their_proportion() -> None:
    shapes = [Shape(SCRAM_SHA_512, 26, 8192)] * 3 + [Shape(SCRAM_SHA_512, 16, 4096)]
    kept = FileCredentials(
        {(SCRAM_SHA_512, f"u{at}"): kept_as(shape) for at, shape in enumerate(shapes)}
    )
    found = Counter(decoy(b"secret", PLAIN, f"nobody-{at}", kept).shape for at in range(2000))
    assert found.keys() == set(shapes)
    assert 1350 < found[shapes[0]] < 1650


def test_credentials_of_unknown_users_are_constant_and_match_nothing() -> None:
    secret = b"known to brokers"
    mine = decoy(secret, SCRAM_SHA_256, "alice")
    assert mine == decoy(secret, SCRAM_SHA_256, "alice")
    assert len(mine.stored_key) == HASH_BYTES[SCRAM_SHA_256]
    assert len({mine.salt, mine.stored_key, mine.server_key}) == 3
    others = [
        decoy(b"another", SCRAM_SHA_256, "alice"),
        decoy(secret, SCRAM_SHA_512, "alice"),
        decoy(secret, SCRAM_SHA_256, "bob"),
    ]
    assert len({mine.salt, *[other.salt for other in others]}) == 4
    assert not matches(mine, PASSWORD)
