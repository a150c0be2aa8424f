"""First pages of the console at 10,000 topics and 1,000 groups, and what open browsers cost.

A broker in a process of its own has all of them. A page is requested as a browser does, with
compression; its time is that until the last byte. The first request of a broker also imports the
console. First paint is the page with the style sheets and scripts that it loads.

Ten browsers show live figures of a broker to which a producer writes at full speed. Windows with
and without browsers alternate; the figure is the CPU time that they add to each record, in percent.
The same for a broker that has nothing else to do, in percent of a processor.

A filter of the messages pages searches a topic of JSON records of 100 bytes, of which none matches;
its rate is that of the whole request.

Aims: a page within 300 ms and 60 KiB; ten browsers cost less than 2 % of a loaded broker; filters
search a million records per second.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import statistics
import time
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from benchmarks.harness import Row
from benchmarks.metrics_scrape import LOADED_TOPIC, producer
from benchmarks.peers.load import cpu_seconds
from penstock.client import Client
from penstock.testing import Broker

TOPICS = 10_000
TOPICS_AT_ONCE = 500
GROUPS = 1_000
AIM_MS = 300.0
AIM_KIB = 60.0
AIM_PERCENT = 2.0
BROWSERS = 10
AIM_RECORDS = 1e6
RETAINED_BYTES = 1 << 30
FILTERED_RECORDS = 2_000_000
FILTERED_AT_ONCE = 100_000
FILTERS = {
    "a field of JSON": ".value.amount == -1",
    "two fields of JSON": '.value.amount > 900 and .value.state == "lost"',
    "a text in the value": '.value | contains("lost")',
    "a regular expression": '.value | test("lost-[0-9]+")',
    "the key": '.key == "absent"',
}
PAGES = {
    "overview": "/console",
    "topics": "/console/topics",
    "topics, by size": "/console/topics?sort=-size",
    "topics, a search": "/console/topics?q=77",
    "groups": "/console/groups",
    "groups, last page": "/console/groups?page=20",
    "brokers": "/console/brokers",
}


class Web:
    """HTTP connection to the admin interface, kept open as a browser's."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)

    def get(self, path: str) -> tuple[float, bytes]:
        """Return the milliseconds of a request and the compressed body."""
        began = time.perf_counter()
        self._connection.request("GET", path, headers={"accept-encoding": "gzip"})
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path} has status {response.status}")
        return 1000 * (time.perf_counter() - began), body

    def opened(self) -> http.client.HTTPConnection:
        """Request live figures; return the connection, on which they arrive."""
        self._connection.request("GET", "/console/live")
        self._connection.getresponse().readline()
        return self._connection


def fill(client: Client) -> None:
    """Create the topics and groups. Each group has read two topics."""
    for start in range(0, TOPICS, TOPICS_AT_ONCE):
        names = [f"topic-{number:05}" for number in range(start, start + TOPICS_AT_ONCE)]
        topics = [
            {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": (),
                "configs": (),
            }
            for name in names
        ]
        body = {"topics": topics, "timeout": 60_000, "validate_only": False}
        client._control("CreateTopics", body, "topics", lambda item: item.name)
    for number in range(GROUPS):
        places = [(f"topic-{(2 * number + more) % TOPICS:05}", 0) for more in range(2)]
        client.commit_offsets(f"group-{number:04}", dict.fromkeys(places, 0))


def first_paint_bytes(url: str, path: str) -> int:
    """Return the bytes that a browser receives before the first paint of a page."""
    _, page = Web(url).get(path)
    paths = re.findall(r'(?:src|href)="(/console/assets/[^"]+)"', gzip.decompress(page).decode())
    return len(page) + sum(len(Web(url).get(asset)[1]) for asset in paths)


def browsers_percent(window_seconds: float, rounds: int) -> dict[str, float]:
    """Return what ten browsers add to the CPU time of a broker, in percent.

    For an idle broker it is a share of one processor, for a loaded one a share of its CPU time for
    each record.
    """
    with (
        Broker({"log.retention.bytes": RETAINED_BYTES}, process=True) as broker,
        broker.client() as client,
    ):
        broker.create_topic(LOADED_TOPIC)
        Web(broker.admin_url).get("/console")

        def used(*, loaded: bool) -> float:
            before, first = cpu_seconds([broker.pid or 0]), _written(client)
            time.sleep(window_seconds)
            seconds = cpu_seconds([broker.pid or 0]) - before
            return seconds / (_written(client) - first if loaded else window_seconds)

        def added(*, loaded: bool) -> float:
            found = []
            for _ in range(rounds):
                without = used(loaded=loaded)
                connections = [Web(broker.admin_url).opened() for _ in range(BROWSERS)]
                more = used(loaded=loaded) - without
                found.append(100 * (more / without if loaded else more))
                for connection in connections:
                    connection.close()
            return statistics.median(found)

        idle = added(loaded=False)
        with producer(broker.bootstrap):
            return {"an idle": idle, "a loaded": added(loaded=True)}


def _written(client: Client) -> int:
    return client.list_offsets(LOADED_TOPIC, "latest")[0]


def filter_rows(records: int, rounds: int) -> list[Row]:
    """Return the rates of filters in both orders, in records per second."""
    values = [
        b'{"id": %d, "amount": %d, "state": "state-%d", "note": "%s"}'
        % (10_000_000 + number, number % 1000, number % 7, b"x" * 34)
        for number in range(FILTERED_AT_ONCE)
    ]
    table = pa.table({"key": [f"{number:06}" for number in range(len(values))], "value": values})
    with Broker(process=True) as broker:
        with broker.client() as client:
            client.create_topic("filtered", 1)
            for _ in range(records // FILTERED_AT_ONCE):
                client.write_arrow("filtered", table)
        rows = []
        for name, text in FILTERS.items():
            for order in ("newest", "oldest"):
                query = urlencode({"filter": text, "order": order})
                path = f"/console/topics/filtered/messages/stream?{query}"
                times = [_searched(Web(broker.admin_url), path, records) for _ in range(rounds)]
                rate = records / statistics.median(times)
                rows.append(
                    Row(
                        name=f"filter by {name}, {order} first",
                        value=rate,
                        unit="records/s",
                        prediction=AIM_RECORDS,
                        reference=AIM_RECORDS,
                        reference_name="the aim",
                    )
                )
    return rows


def _searched(web: Web, path: str, records: int) -> float:
    """Return the seconds of a search, which must have read all records."""
    milliseconds, body = web.get(path)
    done = json.loads(body.splitlines()[-1])["done"]
    if done["records"] != records or done["found"]:
        raise RuntimeError(f"{path} has searched {done}")
    return milliseconds / 1000


def measure(quick: bool) -> list[Row]:
    """Run everything; milliseconds, KiB and percent."""
    rounds = 5 if quick else 30
    rows = []
    with Broker(process=True) as broker:
        with broker.client() as client:
            fill(client)
        url = broker.admin_url
        cold_ms, _ = Web(url).get("/console/topics")
        scale = f"{TOPICS:,} topics and {GROUPS:,} groups"
        rows.append(_row(f"first request of a broker, {scale}", cold_ms, "ms", AIM_MS))
        web = Web(url)
        for name, path in PAGES.items():
            times = [web.get(path)[0] for _ in range(rounds)]
            rows.append(_row(f"{name}, median", statistics.median(times), "ms", AIM_MS))
            rows.append(_row(f"{name}, slowest of {rounds}", max(times), "ms", AIM_MS))
        for name in ("overview", "topics", "groups"):
            size = first_paint_bytes(url, PAGES[name]) / 1024
            rows.append(_row(f"{name}, first paint", size, "KiB", AIM_KIB))
    rows += filter_rows(FILTERED_RECORDS // (2 if quick else 1), 3 if quick else 7)
    found = browsers_percent(5.0 if quick else 10.0, 3 if quick else 9)
    rows += [
        _row(f"CPU time that {BROWSERS} browsers add to {name} broker", percent, "%", AIM_PERCENT)
        for name, percent in found.items()
    ]
    return rows


def _row(name: str, value: float, unit: str, aim: float) -> Row:
    return Row(
        name=name,
        value=value,
        unit=unit,
        prediction=aim,
        reference=aim,
        reference_name="the aim",
        lower_is_better=True,
    )
