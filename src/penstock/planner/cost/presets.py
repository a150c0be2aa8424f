"""Workloads of the sources, ready to compute: what each says, and what had to be assumed.

A source gives totals but not everything that they follow from. What it leaves out is an input here
like any other, with the reason for its value, so that anybody can put another in its place. No
price is changed and no constant is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Inputs of one scenario. `assumed` has what its source does not say, by input."""

    doc: str
    inputs: Mapping[str, object]
    assumed: Mapping[str, str]


PRESETS: Final[Mapping[str, Preset]] = {
    "outbox-article": Preset(
        doc="The worked example of the filesystem outbox article: 100 TB a day, kept 24 hours.",
        inputs={
            "bytes-per-day": 100e12,
            "compression": 1.0,
            "retention": 1.0,
            "replication-factor": 3,
            "zones": 3,
            "consumer-groups": 1,
            "peak-factor": 1.0,
            "headroom": 0.0,
            "disk-free": 0.0,
            "message-bytes": 780,
            "msk-broker-rate": 130e6,
            "msk-broker-vcpus": 8,
            "msk-storage": 18e12,
            "managed-replication-free": False,
            "file-bytes": 250_000,
            "pointer-carrier": "existing",
            "efs-throughput": 10e9,
            "fsx-throughput": 10e9,
            "fsx-tiering-throughput": 5e9,
            "archive-share": 1.0,
            "tiering-requests-per-file": 0.0,
        },
        assumed={
            "message-bytes": (
                "700 shards and 28,000 units/s come to about $8,600 at list prices, not $70,000."
                " Events of 780 bytes, one a record, need 1,484 shards for their number and cost"
                " $70,000; the article's text has 700 to 1,500 shards"
            ),
            "consumer-groups": "1 reader: EFS Elastic's $300,000 holds one reading of all data",
            "reads-cross-zone": (
                "2/3: MSK's $70,000 to $90,000 is reached with one reader that crosses zones;"
                " brokers, volumes and replication alone are $67,000"
            ),
            "msk-broker-rate": "130 MB/s: gives the article's 9 brokers, each of 8 vCPU",
            "msk-storage": (
                "9 × 2 TB as the article has it, which is 1.4 hours of three copies and not 24;"
                " 24 hours would be 300 TB and $28,200 more"
            ),
            "file-bytes": (
                "250 kB, of the article's few hundred kB to a few MB: 12 billion PUTs a month are"
                " $60,000 of S3's $67,000"
            ),
            "efs-throughput": (
                "10 GB/s, 5 to write and 5 to read: 5 GB/s alone makes $60,000 at list prices, not"
                " $90,000"
            ),
            "fsx-throughput": (
                "10 GB/s for the same reason: 5 GB/s alone makes $22,000, not $27,000"
            ),
            "fsx-tiering-throughput": (
                "5 GB/s as the article says; the 10 GB/s of the other rows would make $9,100"
            ),
            "archive-share": (
                "1: the article has all data in Archive, which takes 90 days without a read, while"
                " it is kept for 1. By age all is in Frequent Access: $6,600"
            ),
            "tiering-requests-per-file": (
                "0: the article counts no requests; one for each file of 250 kB would be $60,000"
            ),
            "pointer-carrier": "existing: the article's rows hold no pointers",
        },
    ),
    "classic-split": Preset(
        doc="Classic Kafka in LinkedIn's style: 45 % storage, 30 % network, 20 % compute.",
        inputs={
            "bytes-per-day": 7e15,
            "message-bytes": 1000,
            "compression": 3.0,
            "retention": 7.0,
            "replication-factor": 3,
            "zones": 3,
            "consumer-groups": 4,
            "peak-factor": 1.0,
            "headroom": 0.0,
            "disk-free": 0.0,
            "broker-rate": 6.752e6,
            "broker-vcpus": 16,
            "operations-share": 0.05,
            "partitions": 7_000_000,
        },
        assumed={
            "consumer-groups": "4 that know no racks: makes the network 2/3 of the storage",
            "broker-rate": "27 GB/s compressed over LinkedIn's 4,000 brokers",
            "broker-vcpus": "16, at the list price of m7g.4xlarge",
            "operations-share": "5 %, as the split says",
        },
    ),
    "s3-native-split": Preset(
        doc="S3-native Kafka: 55 % object storage, 25 % compute, 10 % requests, 5 % cache.",
        inputs={
            "rate": 3e9,
            "message-bytes": 1000,
            "compression": 3.0,
            "retention": 60.0,
            "replication-factor": 3,
            "zones": 3,
            "consumer-groups": 4,
            "peak-factor": 1.0,
            "headroom": 0.0,
            "disk-free": 0.0,
            "broker-rate": 6.752e6,
            "broker-vcpus": 16,
            "diskless-broker-rate": 9e6,
            "diskless-broker-vcpus": 16,
            "commit-interval": 500.0,
            "cache-time": 10.0,
            "consolidation": False,
            "operations-share": 0.05,
            "partitions": 10_000,
        },
        assumed={
            "rate": "1 GB/s compressed, what the log and queue article gives for a small cluster",
            "retention": (
                "60 d for high retention. The 30 to 50 % are against tiered storage; against local"
                " disks that keep all of it, list prices save 88 %"
            ),
            "diskless-broker-rate": (
                "9 MB/s where the classic broker of the same size takes 6.75: stateless brokers"
                " need 3/4 of the processors"
            ),
            "commit-interval": "500 ms, the upper end of 200 to 500 ms",
            "cache-time": "10 h in each zone: 1.4 % of what is kept",
            "consolidation": "off: the split has no requests for it",
            "consumer-groups": "4, as in the classic split",
        },
    ),
}
