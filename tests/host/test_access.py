"""The rules of an agent: what they let whom do, and what is wrong with others."""

from __future__ import annotations

import pytest

from penstock.host.access import InvalidRules, Permission, parse_rules
from penstock.security.credentials import SCRAM_SHA_256, derive

CREDENTIAL = derive(SCRAM_SHA_256, "s3cret", salt=b"0123456789abcdef", iterations=4096)
RULES = f"""
[[rule]]
uid = 1000
gid = 100
principal = "User:both"
topics = ["orders"]

[[rule]]
uid = 1000
principal = "User:app"
topics = ["orders", "metrics.*"]

[[rule]]
gid = 7
principal = "User:group"
topics = ["*"]

[[rule]]
user = "web"
password = "{CREDENTIAL.text()}"
principal = "User:web"
topics = ["clicks"]

[[rule]]
token_sha256 = "{"ab" * 32}"
principal = "User:eye"
observes = true
"""


def test_the_first_rule_that_fits_says_all() -> None:
    rules = parse_rules(RULES)

    def who(uid: int, gid: int) -> str:
        found = rules.of_peer(uid, gid, own_uid=5)
        return "" if found is None else found.principal

    assert [who(1000, 100), who(1000, 7), who(3, 7), who(5, 5), who(3, 3), who(0, 0)] == [
        "User:both", "User:app", "User:group", "User:uid-5", "", "",
    ]  # fmt: skip
    assert rules.users["web"].principal == "User:web"
    assert rules.credentials.credential(SCRAM_SHA_256, "web") == CREDENTIAL
    assert rules.credentials.credential(SCRAM_SHA_256, "eye") is None
    assert rules.tokens["ab" * 32].observes
    assert "SCRAM" not in repr(rules)
    assert "abab" not in repr(rules)


def test_topics_are_names_or_beginnings() -> None:
    app = Permission(principal="User:app", names=frozenset({"orders"}), prefixes=("metrics.",))
    assert [app.allows(name) for name in ("orders", "metrics.", "metrics.cpu")] == [True] * 3
    assert not any(app.allows(name) for name in ("", "order", "orders2", "metrics", "Orders"))
    assert parse_rules(RULES).peers[2][2].allows("")
    assert not Permission(principal="User:none").allows("")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule]]\nuid = 1", "rule 1: principal must be a text"),
        ("[[rule]]\nprincipal = 'User:a'", "rule 1: must have exactly one of: uid or gid"),
        ("[[rule]]\nuid = -1\nprincipal = 'User:a'", "rule 1: uid must be a whole number"),
        ("[[rule]]\nuid = true\nprincipal = 'User:a'", "rule 1: uid must be a whole number"),
        ("[[rule]]\nuid = 4294967295\nprincipal = 'User:a'", "rule 1: uid must be a whole"),
        ("[[rule]]\nuid = 1\nprincipal = 'alice'", "rule 1: principal must be a text"),
        ("[[rule]]\nuid = 1\nprincipal = 'User:a'\ntopics = 'a'", "topics must be a list"),
        ("[[rule]]\nuid = 1\nprincipal = 'User:a'\ntopics = ['a*b']", "topic 'a*b'"),
        ("[[rule]]\nuid = 1\nprincipal = 'User:a'\ntopics = ['']", "topic ''"),
        ("[[rule]]\nuid = 1\nprincipal = 'User:a'\ntopic = []", "'topic' is unknown"),
        (
            "[[rule]]\nuid = 1\nuser = 'a'\nprincipal = 'User:a'",
            "must have exactly one of: uid or gid",
        ),
        ("[[rule]]\nuser = 'a'\nprincipal = 'User:a'", "must have exactly one of: uid or gid"),
        ("[[rule]]\nuid = 1\nprincipal = 'User:a'\nobserves = 1", "observes must be true"),
        ("[[rule]]\ntoken_sha256 = 'hunter2'\nprincipal = 'User:a'", "token_sha256 must be a text"),
        (
            "[[rule]]\nuser = 'a'\npassword = 'hunter2'\nprincipal = 'User:a'",
            "rule 1: a credential must have the form",
        ),
        ("rules = []", "only [[rule]] tables, at most 1000"),
        ("rule = 3", "only [[rule]] tables, at most 1000"),
        ("rule = [3]", "rule 1: must be a table"),
        ("[[rule]", "Expected ']]'"),
    ],
)
def test_mistakes_are_named(text: str, said: str) -> None:
    with pytest.raises(InvalidRules) as failed:
        parse_rules(text)
    assert said in str(failed.value)
    assert "hunter2" not in str(failed.value)
