"""The table of what is served, against the schemas and the reference page."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.wire.kafka.apis import APIS, BY_NAME, NEVER_FLEXIBLE, Api, reference_page
from penstock.wire.kafka.framing import UnsupportedVersion
from penstock.wire.kafka.schema import load_struct, module_name
from tests.wire.kafka.entities import TABLE, served_versions

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "api-keys.md"


@pytest.mark.parametrize("api", TABLE, ids=lambda api: str(api.name))
def test_the_range_is_as_wide_as_the_schemas(api: Api) -> None:
    for version in served_versions(api):
        request = load_struct(api.name, version, "request")
        assert request.entity.__api_key__ == api.key
        assert request.flexible == (version >= api.flexible_from)
        header = request.entity.__header_schema__
        assert header.__version__ == api.request_header_version(version)
        response = load_struct(api.name, version, "response").entity.__header_schema__
        assert response.__version__ == api.response_header_version(version)
    if api.name != "InitProducerId":
        with pytest.raises(UnsupportedVersion):
            load_struct(api.name, api.maximum + 1, "request")
    with pytest.raises(UnsupportedVersion):
        load_struct(api.name, api.served_from - 1, "request")


def test_keys_are_unique_and_never_flexible_means_never() -> None:
    assert len(APIS) == len({api.name for api in APIS.values()})
    assert all(
        api.flexible_from <= api.maximum or api.flexible_from == NEVER_FLEXIBLE for api in TABLE
    )


def test_produce_is_advertised_from_zero_and_served_from_three() -> None:
    assert APIS[0].minimum == 0
    assert not APIS[0].serves(2)
    assert APIS[0].serves(3)


def test_no_version_is_advertised_for_transactions_in_two_phases() -> None:
    assert BY_NAME["InitProducerId"].maximum == 5
    load_struct("InitProducerId", 6, "request")


def test_names_of_modules() -> None:
    assert module_name("OffsetForLeaderEpoch") == "offset_for_leader_epoch"


def test_the_reference_page_is_current() -> None:
    assert REFERENCE.read_text() == reference_page()
