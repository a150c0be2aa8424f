"""Apache Kafka's own command line, unchanged: what operators of groups and transactions use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from compat.command_line import COMMAND_LINE
from compat.drivers import Driver, eventually
from compat.scenes import plain_records
from compat.servers import Server
from compat.tools import Table, run_tool

Tool = Callable[..., Table]


@pytest.fixture(scope="module")
def tool(server: Server) -> Tool:
    """Runs a tool against the server."""
    return partial(run_tool, server.bootstrap)


def test_transactions_are_listed_described_and_aborted(
    tool: Tool, helper: Driver, topic: str, name: str, now_ms: int
) -> None:
    transactions = "TransactionsCommand"
    place = ("--topic", topic, "--partition", "1")
    with helper.transactional(name) as producer:
        producer.begin()
        producer.send(topic, plain_records(12, timestamp=now_ms))
        (listed,) = [row for row in tool(transactions, "list") if row["TransactionalId"] == name]
        assert listed["TransactionState"] == "Ongoing"
        (found,) = tool(transactions, "describe", "--transactional-id", name)
        assert found["TransactionTimeoutMs"] == "60000"
        touched = {part.rpartition("-")[2] for part in found["TopicPartitions"].split(",")}
        assert touched == {"0", "1", "2", "3", "4", "5"}
        (open_one,) = tool(transactions, "describe-producers", *place)
        assert open_one["ProducerId"] == listed["ProducerId"]
        assert open_one["CurrentTransactionStartOffset"] == "0"
        assert tool(transactions, "find-hanging", "--topic", topic) == []
        tool(transactions, "abort", *place, "--start-offset", "0")
        (ended,) = tool(transactions, "describe-producers", *place)
        assert ended["CurrentTransactionStartOffset"] == "None"


@pytest.mark.parametrize(("kind", "told"), [("eager", "Classic"), ("server", "Consumer")])
def test_groups_are_listed_described_and_reset(
    tool: Tool, helper: Driver, topic: str, name: str, now_ms: int, kind: str, told: str
) -> None:
    groups = "consumer.group.ConsumerGroupCommand"
    helper.produce(topic, plain_records(12, timestamp=now_ms))
    member = helper.join(name, topic, kind=kind)
    try:
        eventually(lambda: len(member.records()) == 12, lambda: len(member.records()))
        states = {row["GROUP"]: row["STATE"] for row in tool(groups, "--list", "--state")}
        assert states[name] == "Stable"
        (described,) = tool(groups, "--describe", "--group", name, "--members", "--verbose")
        assert described["CURRENT-ASSIGNMENT"] == f"{topic}:0,1,2,3,4,5"
    finally:
        member.close()
    lags = {row["PARTITION"]: row["LAG"] for row in tool(groups, "--describe", "--group", name)}
    assert lags == dict.fromkeys("012345", "0")
    where = ("--group", name, "--topic", topic)
    moved = tool(groups, "--reset-offsets", *where, "--to-earliest", "--execute")
    assert {row["NEW-OFFSET"] for row in moved} == {"0"}
    lags = {row["PARTITION"]: row["LAG"] for row in tool(groups, "--describe", "--group", name)}
    assert lags == dict.fromkeys("012345", "2")
    (listed,) = [row for row in tool("GroupsCommand", "--list") if row["GROUP"] == name]
    assert listed["TYPE"] == told
    tool(groups, "--delete", "--group", name)
    assert name not in {row["GROUP"] for row in tool("GroupsCommand", "--list")}


def test_features_keep_their_levels(server: Server) -> None:
    features = "org.apache.kafka.tools.FeatureCommand"
    described = COMMAND_LINE.run(server.bootstrap, features, "describe").out
    levels = {
        words[1]: words[words.index("FinalizedVersionLevel:") + 1]
        for words in map(str.split, described.splitlines())
        if words[:1] == ["Feature:"]
    }
    assert levels["share.version"] == "2"
    assert levels["group.version"] == "1"
    kept = COMMAND_LINE.run(server.bootstrap, features, "upgrade", "--feature", "share.version=2")
    assert kept.status == 0, kept
    raised = COMMAND_LINE.run(server.bootstrap, features, "upgrade", "--feature", "share.version=9")
    assert raised.status != 0
    assert "only supports versions 0-2" in raised.out + raised.errors


def test_the_quorum_has_a_leader_that_is_its_voter(server: Server) -> None:
    quorum = "org.apache.kafka.tools.MetadataQuorumCommand"
    status = COMMAND_LINE.run(server.bootstrap, quorum, "describe", "--status")
    assert status.status == 0, status
    values = dict(line.split(":", 1) for line in status.out.splitlines() if ":" in line)
    assert int(values["HighWatermark"]) > 0
    assert int(values["MaxFollowerLag"]) >= 0
    (leader,) = [
        row
        for row in run_tool(server.bootstrap, "MetadataQuorumCommand", "describe", "--replication")
        if row["Status"] == "Leader"
    ]
    assert leader["NodeId"] == values["LeaderId"].strip()
    assert f'"id": {leader["NodeId"]}' in values["CurrentVoters"]
