"""The broker's settings load from Kafka's names and refuse what cannot work."""

import pytest

from penstock.base.errors import InvalidSetting
from penstock.base.settings import describe, load
from penstock.broker.configuration.settings import UNSET, BrokerSettings


def test_defaults_are_within_their_own_bounds() -> None:
    for info in describe(BrokerSettings):
        default = info.default
        if default == UNSET or not isinstance(default, (int, float)):
            continue
        assert info.minimum is None or default >= info.minimum, info.name
        assert info.maximum is None or default <= info.maximum, info.name


def test_names_are_unique_and_match_their_attributes() -> None:
    infos = list(describe(BrokerSettings))
    assert len({info.name for info in infos}) == len(infos)
    renamed = {"max.incremental.fetch.session.cache.slots": "fetch_sessions_max"}
    for info in infos:
        assert info.attribute == renamed.get(info.name, info.name.replace(".", "_"))


def test_loads_text_and_typed_values() -> None:
    settings = load(
        BrokerSettings, {"node.id": "7", "listeners": "PLAINTEXT://h:1, PLAINTEXT://h:2"}
    )
    assert settings.node_id == 7
    assert settings.listeners == ("PLAINTEXT://h:1", "PLAINTEXT://h:2")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"log.retention.ms": UNSET}, "log.retention.ms"),
        ({"listeners": ""}, "listeners"),
        ({"group.max.session.timeout.ms": 5}, "group.min.session.timeout.ms"),
        ({"no.such.name": 1}, "no.such.name"),
        ({"broker.roles": "ingestion,broker"}, "must be one or both of ingestion, persistence"),
        ({"broker.roles": "ingestion,ingestion"}, "broker.roles"),
        ({"broker.roles": ""}, "broker.roles"),
        ({"log.cleanup.policy": "burn"}, "log.cleanup.policy"),
    ],
)
def test_refuses_what_cannot_work(values: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named):
        load(BrokerSettings, values)
