"""ACLs: what may be bound, what filters match, and every decision against plain loops."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import ANONYMOUS, EVERYTHING, PERMISSIVE, AclAuthoriser, Principal
from penstock.security.acls import (
    CLUSTER,
    NAME_CHARS_MAX,
    OPERATIONS,
    PERMISSIONS,
    SUPPORTED,
    AclBinding,
    AclFilter,
    AclIndex,
    InvalidAcl,
    address_of,
    binding_of,
    checked,
)
from penstock.security.authoriser import DECISIONS_MAX, REMEMBERED_CHARS_MAX, _Remembered
from tests.security.access import allow

HERE, THERE = "10.0.0.1", "10.0.0.2"


def bound(name: str = "t", operation: str = "read", **more: Any) -> AclBinding:
    return allow(operation, "topic", name, **more)


def allowed(
    bindings: list[AclBinding],
    operation: str,
    name: str = "t",
    *,
    user: str = "a",
    host: str = HERE,
) -> bool:
    index = AclIndex(bindings)
    return index.allows(operation, "topic", name, principal=f"User:{user}", host=host)


# -- networks ----------------------------------------------------------------------------------

addresses = st.ip_addresses(v=4) | st.ip_addresses(v=6)


@st.composite
def networks_and_addresses(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a network, and an address that it often contains."""
    base = draw(addresses)
    length = draw(st.integers(0, base.max_prefixlen))
    network = ipaddress.ip_network((base, length), strict=False)
    inside = st.integers(0, network.num_addresses - 1).map(lambda number: network[number])
    return f"{base}/{length}", str(draw(inside | addresses))


@given(networks_and_addresses())
def test_a_network_holds_the_addresses_that_python_finds_in_it(drawn: tuple[str, str]) -> None:
    host, address = drawn
    inside = ipaddress.ip_address(address) in ipaddress.ip_network(host, strict=False)
    here = address_of(address)
    mapped = getattr(ipaddress.ip_address(address), "ipv4_mapped", None)
    if mapped is None:
        assert allowed([bound(host=host)], "read", host=here) == inside
        both = [bound(), bound(host=host, permission="deny")]
        assert allowed(both, "read", host=here) == (not inside)


def test_a_network_of_mapped_addresses_is_one_of_ipv4() -> None:
    denied = [bound(), bound(host="::ffff:10.1.0.0/112", permission="deny")]
    assert not allowed(denied, "read", host="10.1.2.3")
    assert allowed(denied, "read", host="10.2.2.3")
    assert allowed(denied, "read", host="not an address")


# -- decisions ------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS[3:])
def test_an_operation_is_allowed_by_itself_by_all_and_by_what_implies_it(operation: str) -> None:
    implied = {
        "describe": {"read", "write", "delete", "alter"},
        "describe_configs": {"alter_configs"},
    }
    for granted in OPERATIONS[2:]:
        expected = granted in {operation, "all"} | implied.get(operation, set())
        assert allowed([bound(operation=granted)], operation) == expected


@pytest.mark.parametrize("operation", OPERATIONS[3:])
def test_an_operation_is_denied_by_itself_and_by_all_alone(operation: str) -> None:
    for denied in OPERATIONS[2:]:
        bindings = [bound(operation="all"), bound(operation=denied, permission="deny")]
        assert allowed(bindings, operation) == (denied not in (operation, "all"))


def test_hosts_are_addresses_however_they_are_written() -> None:
    assert allowed([bound(host=HERE)], "read")
    assert allowed([bound(host=f"::ffff:{HERE}")], "read")
    assert not allowed([bound(host=THERE)], "read")
    assert address_of("0:0:0:0:0:0:0:1") == address_of("::1%lo") == "::1"
    assert address_of("example.org") == "example.org"
    rights = AclAuthoriser()
    rights.replace([bound(host=HERE)])
    assert rights.rights(Principal("User", "a"), f"::ffff:{HERE}").allows("read", "topic", "t")


def test_a_prefix_of_a_star_is_no_wildcard() -> None:
    assert allowed([bound("*")], "read", "anything")
    assert not allowed([bound("*", pattern_type="prefixed")], "read", "anything")


NAMES = st.sampled_from(["a", "ab", "abc", "b", "ba", "*", "hardcode", "hard"])
BINDINGS = st.builds(
    AclBinding,
    resource_type=st.sampled_from(["topic", "group"]),
    name=NAMES,
    pattern_type=st.sampled_from(["literal", "prefixed"]),
    principal=st.sampled_from(["User:a", "User:b", "User:*", "Group:a"]),
    host=st.sampled_from(["*", HERE, THERE]),
    operation=st.sampled_from(["all", "read", "write", "describe", "alter_configs"]),
    permission=st.sampled_from(["allow", "deny"]),
)


def naively(
    bindings: list[AclBinding],
    operation: str,
    resource_type: str,
    name: str,
    *,
    principal: str,
    host: str,
    allow_unbound: bool,
) -> bool:
    naming = [
        binding
        for binding in bindings
        if binding.resource_type == resource_type
        and (
            name.startswith(binding.name)
            if binding.pattern_type == "prefixed"
            else binding.name in (name, "*")
        )
    ]
    if not naming:
        return allow_unbound
    mine = [
        item
        for item in naming
        if item.principal in (principal, "User:*") and item.host in (host, "*")
    ]
    if any(entry.permission == "deny" and entry.operation in (operation, "all") for entry in mine):
        return False
    grants = {operation, "all"}
    if operation == "describe":
        grants |= {"read", "write", "delete", "alter"}
    if operation == "describe_configs":
        grants |= {"alter_configs"}
    return any(element.permission == "allow" and element.operation in grants for element in mine)


@given(
    bindings=st.lists(BINDINGS, max_size=12),
    asked=st.lists(
        st.tuples(
            st.sampled_from(["read", "write", "describe", "describe_configs", "create"]),
            st.sampled_from(["topic", "group", "cluster"]),
            NAMES,
            st.sampled_from([("User", "a"), ("User", "b"), ("Group", "a"), ("User", "root")]),
            st.sampled_from([HERE, THERE]),
        ),
        min_size=1,
        max_size=30,
    ),
    allow_unbound=st.booleans(),
)
def test_decisions_are_those_of_plain_loops(
    bindings: list[AclBinding], asked: list[Any], allow_unbound: bool
) -> None:
    authoriser = AclAuthoriser(super_users=["User:root"], allow_unbound=allow_unbound)
    authoriser.replace(bindings)
    for operation, kind, name, (of, user), host in [*asked, *asked]:
        rights = authoriser.rights(Principal(of, user), host)
        expected = user == "root" or naively(
            bindings, operation, kind, name,
            principal=f"{of}:{user}", host=host, allow_unbound=allow_unbound,
        )  # fmt: skip
        assert rights.allows(operation, kind, name) == expected


def naively_some(bindings: list[AclBinding], principal: str, host: str) -> bool:
    """Whether a principal may write to some topic, as Kafka's default method finds it."""
    if naively(
        bindings, "write", "topic", "hardcode",
        principal=principal, host=host, allow_unbound=False,
    ):  # fmt: skip
        return True
    mine = [
        binding
        for binding in bindings
        if binding.resource_type == "topic"
        and binding.principal in (principal, "User:*")
        and binding.host in (host, "*")
        and binding.operation in ("write", "all")
    ]
    denied = [entry for entry in mine if entry.permission == "deny"]
    granted = [element for element in mine if element.permission == "allow"]
    if any(candidate.pattern_type == "literal" and candidate.name == "*" for candidate in denied):
        return False
    for item in granted:
        literal = item.pattern_type == "literal"
        if literal and item.name == "*":
            return True
        same = literal and any(
            other.pattern_type == "literal" and other.name == item.name for other in denied
        )
        below = any(
            other.pattern_type == "prefixed" and item.name.startswith(other.name)
            for other in denied
        )
        if not same and not below:
            return True
    return False


@given(bindings=st.lists(BINDINGS, max_size=8))
def test_whether_some_topic_may_be_written_is_found_as_kafka_finds_it(
    bindings: list[AclBinding],
) -> None:
    authoriser = AclAuthoriser()
    authoriser.replace(bindings)
    rights = authoriser.rights(Principal("User", "a"), HERE)
    assert rights.allows_some("write", "topic") == naively_some(bindings, "User:a", HERE)


def test_super_users_may_do_anything_and_others_nothing_without_bindings() -> None:
    authoriser = AclAuthoriser(super_users=["User:root"])
    assert authoriser.rights(Principal("User", "root"), HERE) is EVERYTHING
    rights = authoriser.rights(ANONYMOUS, HERE)
    assert not rights.allows("describe", "cluster", CLUSTER)
    assert rights.operations("topic", "t") == []
    assert PERMISSIVE.rights(ANONYMOUS, HERE).operations("topic", "t") == SUPPORTED["topic"]


def test_what_was_decided_is_forgotten_with_the_bindings() -> None:
    authoriser = AclAuthoriser()
    me = Principal("User", "a")
    assert not authoriser.rights(me, HERE).allows("read", "topic", "t")
    authoriser.replace([bound()])
    assert authoriser.rights(me, HERE).allows("read", "topic", "t")
    assert authoriser.rights(me, HERE).operations("topic", "t") == ["read", "describe"]
    authoriser.replace([])
    assert not authoriser.rights(me, HERE).allows("read", "topic", "t")


def test_what_is_remembered_is_bounded() -> None:
    authoriser = AclAuthoriser()
    authoriser.replace([bound("t", pattern_type="prefixed")])
    rights = authoriser.rights(Principal("User", "a"), HERE)
    for number in range(DECISIONS_MAX + 2):
        assert rights.allows("read", "topic", f"t{number}")
    assert authoriser.rights(Principal("User", "a"), HERE) is not rights


def test_long_names_are_not_remembered() -> None:
    """A caller could fill the memory with their texts."""
    authoriser = AclAuthoriser()
    authoriser.replace([bound("t", pattern_type="prefixed")])
    rights = authoriser.rights(Principal("User", "a"), HERE)
    assert isinstance(rights, _Remembered)
    for length, remembered in ((REMEMBERED_CHARS_MAX, 1), (REMEMBERED_CHARS_MAX + 1, 1)):
        assert rights.allows("read", "topic", "t" * length)
        assert len(rights._decided) == remembered


def test_rights_that_a_request_holds_follow_the_bindings() -> None:
    authoriser = AclAuthoriser()
    authoriser.replace([bound()])
    rights = authoriser.rights(Principal("User", "a"), HERE)
    assert rights.allows("read", "topic", "t")
    assert rights.allows_some("read", "topic")
    authoriser.replace([])
    assert not rights.allows("read", "topic", "t")
    assert not rights.allows_some("read", "topic")
    authoriser.replace([bound()])
    assert rights.operations("topic", "t") == ["read", "describe"]


# -- bindings and filters -------------------------------------------------------------------


@given(binding=BINDINGS)
def test_the_stored_form_is_read_back(binding: AclBinding) -> None:
    assert binding_of(binding.text()) == binding


@pytest.mark.parametrize("text", ["", "{}", "[]", '["topic"]', "nothing", "[1,2,3,4,5,6,7]", "7"])
def test_what_is_no_stored_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidAcl):
        binding_of(text)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"resource_type": "any"}, "resource type 'any'"),
        ({"resource_type": "unknown"}, "resource type 'unknown'"),
        ({"pattern_type": "match"}, "pattern type 'match'"),
        ({"operation": "any"}, "operation 'any'"),
        ({"permission": "any"}, "permission type 'any'"),
        ({"name": ""}, "resource name of an ACL must not be empty"),
        ({"name": "a\0b"}, "control characters"),
        ({"host": "a\nb"}, "control characters"),
        ({"host": ""}, "host of an ACL must not be empty"),
        ({"name": "x" * (NAME_CHARS_MAX + 1)}, "1025 characters; the limit is 1024"),
        ({"principal": "alice"}, "TYPE:NAME"),
        ({"resource_type": "cluster"}, "kafka-cluster"),
    ],
)
def test_what_cannot_be_bound_is_refused(changed: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidAcl, match=said):
        checked(bound(**changed))


BOUND = [
    bound("ab"),
    bound("*"),
    bound("a", pattern_type="prefixed"),
    bound("ab", pattern_type="prefixed", permission="deny"),
    bound("ab", resource_type="group"),
    bound("ab", principal="User:b", host=HERE, operation="write"),
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), [0, 1, 2, 3, 4, 5]),
        (AclFilter(resource_type="topic", name="ab", pattern_type="match"), [0, 1, 2, 3, 5]),
        (AclFilter(resource_type="topic", name="abc", pattern_type="match"), [1, 2, 3]),
        (AclFilter(name="ab"), [0, 3, 4, 5]),
        (AclFilter(name="ab", pattern_type="prefixed"), [3]),
        (AclFilter(pattern_type="prefixed"), [2, 3]),
        (AclFilter(principal="User:b"), [5]),
        (AclFilter(host=HERE), [5]),
        (AclFilter(operation="write"), [5]),
        (AclFilter(permission="deny"), [3]),
        (AclFilter(resource_type="cluster"), []),
    ],
)
def test_filters_match_what_they_name(wanted: AclFilter, found: list[int]) -> None:
    assert [BOUND.index(item) for item in BOUND if wanted.matches(item)] == found


def test_words_have_the_numbers_of_the_protocol() -> None:
    assert [OPERATIONS.index(thing) for thing in ("all", "read", "two_phase_commit")] == [2, 3, 15]
    assert [PERMISSIONS.index(entry) for entry in ("deny", "allow")] == [2, 3]
