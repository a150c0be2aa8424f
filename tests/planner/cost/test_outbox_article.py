"""Filesystem outbox article's numbers: its table at 100 TB a day, Kinesis, MSK, pointers.

Inputs that the article leaves out are part of the preset. The tests beside each row compute the
article's own words without them.
"""

from __future__ import annotations

import pytest

from penstock.planner.cost import PRESETS
from tests.planner.cost.bills import PRICES, bill, inputs, plain

ARTICLE = "outbox-article"


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [
        ("outbox-efs-elastic", 295_000, 305_000),
        ("outbox-efs-provisioned", 85_000, 95_000),
        ("msk-provisioned", 70_000, 90_000),
        ("kinesis-provisioned", 65_000, 75_000),
        ("s3-direct", 66_500, 67_500),
        ("outbox-fsx-ssd", 26_500, 27_500),
        ("outbox-fsx-tiering", 4_500, 5_500),
    ],
)
def test_table(key: str, least: float, most: float) -> None:
    assert least <= bill(key, ARTICLE).total_usd <= most


def test_every_assumption_is_an_input_that_the_preset_sets_or_leaves() -> None:
    preset = PRESETS[ARTICLE]
    inputs(ARTICLE)
    left = set(preset.assumed) - set(preset.inputs)
    assert left == {"reads-cross-zone"}


def test_efs_elastic_is_storage_writing_and_one_reading() -> None:
    found = bill("outbox-efs-elastic", ARTICLE)
    assert [round(line.usd) for line in found.lines] == [30_000, 180_000, 90_000]


def test_5_gbps_alone_is_less_than_the_article_says() -> None:
    efs = bill("outbox-efs-provisioned", ARTICLE, efs_throughput=5e9)
    fsx = bill("outbox-fsx-ssd", ARTICLE, fsx_throughput=5e9)
    assert round(efs.total_usd, -3) == 60_000
    assert round(fsx.total_usd, -3) == 22_000


def test_intelligent_tiering_by_age_and_with_the_throughput_of_the_others() -> None:
    assert bill("outbox-fsx-tiering", ARTICLE, archive_share=-1).total_usd == pytest.approx(
        6_635, abs=1
    )
    same = bill("outbox-fsx-tiering", ARTICLE, fsx_tiering_throughput=10e9)
    assert same.total_usd == pytest.approx(9_120, abs=1)
    charged = bill("outbox-fsx-tiering", ARTICLE, tiering_requests_per_file=1)
    assert charged.line("requests").usd == pytest.approx(60_000)


def test_archive_is_about_80_percent_below_frequent_access() -> None:
    frequent, colder, archive = (
        PRICES[f"fsx.{tier}-gb-month"].usd for tier in ("frequent", "infrequent", "archive")
    )
    assert colder == pytest.approx(frequent * (1 - 0.44), rel=0.01)
    assert archive == pytest.approx(colder * (1 - 0.65), rel=0.01)
    assert 1 - archive / frequent == pytest.approx(0.80, abs=0.01)
    assert 0.85 <= 1 - frequent / PRICES["fsx.ssd-gb-month"].usd <= 0.88


def test_msk_brokers_volumes_and_replication() -> None:
    found = bill("msk-provisioned", ARTICLE)
    assert found.size("brokers") == 9
    assert 3_000 <= found.line("compute").usd <= 6_000
    assert found.line("disk").usd == pytest.approx(1_800)
    assert found.line("replication").usd == pytest.approx(60_000)
    assert found.line("fetch").usd == pytest.approx(20_000)
    alone = bill("msk-provisioned", ARTICLE, reads_cross_zone=0)
    assert round(alone.total_usd, -3) == 67_000


def test_the_articles_volumes_hold_less_than_24_hours() -> None:
    whole = bill("msk-provisioned", ARTICLE, msk_storage=0)
    assert whole.line("disk").usd == pytest.approx(30_000)
    assert pytest.approx(1.44) == 18e12 / (3 * 100e12 / 24)


def test_kinesis_700_mb_is_700_shards_and_28_000_units() -> None:
    found = bill(
        "kinesis-provisioned", **plain(rate=700e6, consumer_groups=1, kinesis_record_bytes=25_000,
                                       retention=1)
    )  # fmt: skip
    assert found.size("shards") == 700
    assert found.size("put_units_per_second") == pytest.approx(28_000)
    assert found.total_usd == pytest.approx(700 * 720 * 0.015 + 28_000 * 2.592 * 0.014)
    assert round(found.total_usd, -2) == 8_600


def test_kinesis_of_small_events_is_bound_by_records() -> None:
    found = bill("kinesis-provisioned", ARTICLE)
    assert found.size("shards") == 1484
    assert 700 <= found.size("shards") <= 1500
    assert found.size("put_units_per_second") == pytest.approx(1_483_856, rel=1e-5)


def test_kinesis_readers_beyond_two_need_more_shards_or_fan_out() -> None:
    shared = bill("kinesis-provisioned", **plain(rate=100e6, consumer_groups=6))
    own = bill("kinesis-provisioned", **plain(rate=100e6, consumer_groups=6, enhanced_fan_out=True))
    assert (shared.size("shards"), own.size("shards")) == (300, 100)
    assert own.kind_usd("retrieval") > 0 == shared.kind_usd("retrieval")


def test_kinesis_on_demand_clears_30_000_before_reads() -> None:
    found = bill("kinesis-on-demand", **plain(bytes_per_day=100e12, consumer_groups=0, retention=1))
    assert found.line("ingested").usd > 30_000
    assert found.kind_usd("retrieval") == 0


def test_700_mb_of_payload_are_200_kb_of_pointers() -> None:
    found = bill(
        "outbox-fsx-ssd", **plain(rate=700e6, file_bytes=700_000, pointer_carrier="kinesis",
                                  pointer_shards=32, retention=1)
    )  # fmt: skip
    assert found.size("pointer_bytes_per_second") == pytest.approx(200_000)
    assert found.size("files_per_second") == pytest.approx(1000)
    before = bill("kinesis-provisioned", **plain(rate=700e6, kinesis_record_bytes=25_000))
    saved = 1 - found.line("pointer_shards").usd / before.line("shards").usd
    assert saved == pytest.approx(0.95, abs=0.005)
    needed = bill(
        "outbox-fsx-ssd", **plain(rate=700e6, file_bytes=700_000, pointer_carrier="kinesis")
    )
    assert needed.line("pointer_shards").usd == pytest.approx(720 * 0.015)


def test_s3_is_mostly_puts() -> None:
    found = bill("s3-direct", ARTICLE)
    assert [round(line.usd) for line in found.lines] == [2_300, 60_000, 4_800]


def test_msk_serverless_and_express_prices() -> None:
    serverless = bill("msk-serverless", **plain(rate=1e6, partitions=10, consumer_groups=1))
    assert serverless.line("cluster").usd == pytest.approx(720 * 0.75)
    assert serverless.line("partitions").usd == pytest.approx(10 * 720 * 0.0015)
    assert serverless.line("ingested").usd == pytest.approx(2592 * 0.10)
    assert serverless.line("retrieved").usd == pytest.approx(2592 * 0.05)
    express = bill("msk-express", **plain(rate=1e6))
    assert express.line("ingested").usd == pytest.approx(2592 * 0.01)
