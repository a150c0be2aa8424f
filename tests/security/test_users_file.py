"""Users in a file: read, and refused by the line, without a word of what is secret."""

from __future__ import annotations

import pytest

from penstock.security import InvalidCredential
from penstock.security.credentials import SCRAM_SHA_256, SCRAM_SHA_512, derive, parse_users

ONE = derive(SCRAM_SHA_256, "one", salt=b"0123456789", iterations=4096)
TWO = derive(SCRAM_SHA_512, "two", salt=b"0123456789", iterations=8192)


def test_users_with_a_line_for_each_mechanism() -> None:
    text = f"# people\n\nalice:{ONE.text()}\n alice:{TWO.text()} \na:b:{ONE.text()}\n"
    read = parse_users(text.encode())
    assert len(read) == 3
    assert read.credential(SCRAM_SHA_256, "alice") == ONE
    assert read.credential(SCRAM_SHA_512, "alice") == TWO
    assert read.credential(SCRAM_SHA_256, "a:b") == ONE
    assert read.credential(SCRAM_SHA_512, "a:b") is None


@pytest.mark.parametrize(
    "line", ["alice:hunter2", "alice", f":{ONE.text()}", f"alice:{ONE.text()[:-3]}hunter2"]
)
def test_a_bad_line_is_named_and_not_shown(line: str) -> None:
    with pytest.raises(InvalidCredential, match="line 2") as refused:
        parse_users(f"bob:{ONE.text()}\n{line}\n".encode())
    assert "hunter2" not in str(refused.value)


def test_a_mechanism_twice_is_refused() -> None:
    with pytest.raises(InvalidCredential, match="line 2: alice already has a line for"):
        parse_users(f"alice:{ONE.text()}\nalice:{ONE.text()}\n".encode())


def test_a_name_that_is_not_utf8_is_refused() -> None:
    """Such a name had U+FFFD in it and matched no login."""
    with pytest.raises(InvalidCredential, match="line 2 is not UTF-8"):
        parse_users(f"alice:{ONE.text()}\nm\xfcller:{ONE.text()}\n".encode("latin-1"))
