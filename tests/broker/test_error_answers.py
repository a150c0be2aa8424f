"""Failed requests are answered in the shape of each API and version."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.errors import PenstockError
from penstock.broker.net.errors import error_answer, error_name, error_number, error_of
from penstock.wire.kafka.apis import APIS, BY_NAME, Api
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder

NUMBER = 41

REQUESTS: dict[str, dict[str, Any]] = {
    "Metadata": {"topics": [{"name": "t"}]},
    "Produce": {
        "acks": 1,
        "timeout": 1,
        "topic_data": [{"name": "t", "partition_data": [{"index": 5, "records": b"x"}]}],
    },
    "ListOffsets": {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 0,
        "topics": [{"name": "t", "partitions": [{"partition_index": 5, "timestamp": 0}]}],
    },
    "OffsetCommit": {
        "group_id": "g",
        "member_id": "",
        "generation_id_or_member_epoch": -1,
        "retention_time": 0,
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 5, "committed_offset": 1, "committed_metadata": ""}
                ],
            }
        ],
    },
    "CreateTopics": {
        "timeout": 1,
        "topics": [
            {
                "name": "t",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
        ],
    },
    "DeleteTopics": {"timeout": 1, "topic_names": ["t"], "topics": [{"name": "t"}]},
    "DeleteRecords": {
        "timeout": 1,
        "topics": [{"name": "t", "partitions": [{"partition_index": 5, "offset": 1}]}],
    },
    "OffsetForLeaderEpoch": {
        "replica_id": -1,
        "topics": [{"topic": "t", "partitions": [{"partition": 5, "leader_epoch": 0}]}],
    },
    "DescribeConfigs": {
        "resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]
    },
    "CreatePartitions": {
        "timeout": 1,
        "topics": [{"name": "t", "count": 2, "assignments": None}],
    },
    "DeleteGroups": {"groups_names": ["t"]},
    "DescribeGroups": {"groups": ["t"]},
    "DescribeProducers": {"topics": [{"name": "t", "partition_indexes": [5]}]},
    "FindCoordinator": {"key": "t", "key_type": 0, "coordinator_keys": ["t"]},
    "DescribeTopicPartitions": {
        "topics": [{"name": "t"}],
        "response_partition_limit": 1,
        "cursor": None,
    },
}


def _codes(value: Any) -> list[tuple[int, Any]]:
    """Yield all error codes of a response, each with its struct."""
    found = []
    for name in getattr(value, "__slots__", ()):
        item = getattr(value, name)
        if name == "error_code":
            found.append((int(item), value))
        elif isinstance(item, tuple):
            for element in item:
                found += _codes(element)
    return found


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.name))
def test_every_version_has_an_error_answer(api: Api) -> None:
    for version in range(api.served_from, api.maximum + 1):
        entity = None
        if api.name in REQUESTS:
            sent = encoder(api.name, version, "request")(REQUESTS[api.name])
            entity, _ = decoder(api.name, version, "request")(sent, 0)
        answer = error_answer(api, version, entity, NUMBER, "why")
        body = encoder(api.name, version, "response")(answer)
        response, end = decoder(api.name, version, "response")(body, 0)
        assert end == len(body)
        codes = _codes(response)
        if entity is None and not codes:
            continue
        assert {code for code, _ in codes} == {NUMBER}


@pytest.mark.parametrize("name", REQUESTS)
def test_elements_are_named_as_in_the_request(name: str) -> None:
    version = {"Produce": 9, "FindCoordinator": 4, "Metadata": 12, "DeleteTopics": 5}.get(
        name, BY_NAME[name].served_from
    )
    sent = encoder(name, version, "request")(REQUESTS[name])
    entity, _ = decoder(name, version, "request")(sent, 0)
    text = str(error_answer(BY_NAME[name], version, entity, NUMBER, "why"))
    assert "'t'" in text
    if "partition" in str(REQUESTS[name]) and "5" in str(REQUESTS[name]):
        assert ": 5" in text


def test_every_error_of_the_project_has_a_kafka_code() -> None:
    import penstock.broker.net.errors
    import penstock.control
    import penstock.records.errors
    import penstock.storage.files.errors

    assert penstock.broker.net.errors

    def subclasses(kind: type[PenstockError]) -> list[type[PenstockError]]:
        return [kind, *(deep for sub in kind.__subclasses__() for deep in subclasses(sub))]

    for kind in subclasses(PenstockError):
        if kind.code != "unknown_server_error":
            assert error_number(kind.code) != -1, kind


def test_unexpected_exceptions_disclose_nothing_to_clients() -> None:
    number, message = error_of(ValueError("/secret/path"))
    assert number == -1
    assert "secret" not in message
    assert error_number("no_such_error") == -1
    assert error_name(41) == "NOT_CONTROLLER"
    assert error_name(9999) == "ERROR_9999"
