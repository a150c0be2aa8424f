"""Records to try the examples with: tables of keys, values (JSON) and what should come of them.

    python -m examples.pipelines.data NAME [BOOTSTRAP]     creates the topics and writes records

The same seed gives the same records. They are made by columns, as an application with many records
would make them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from examples.flights import data as flights_data
from penstock.client import Client

HERE: Final = Path(__file__).resolve().parent
SEED: Final = 7
START: Final = np.datetime64("2026-01-05T08:00:00", "s")
KEEP: Final = {"retention.ms": "-1"}
"""Some records are of earlier years; retention by time would take them away."""

TOPICS: Final[Mapping[str, Mapping[str, int]]] = {
    "clicks": {"clicks": 4, "clicks.dead": 1},
    "cdc": {"accounts.changes": 4, "accounts.dead": 1},
    "iot": {"readings": 4, "readings.dead": 1, "devices.hot": 1},
    "payments": {"payments": 4, "payments.dead": 1, "ledger": 4},
    "flights": {"flights": 4, "flights.dead": 1},
}


def clicks(count: int = 20_000, users: int = 200) -> pa.Table:
    """Clicks of users, in order of time over a day; one in a thousand has no user."""
    dice = np.random.default_rng(SEED)
    seconds = np.sort(dice.integers(0, 86_400, count))
    user = dice.integers(0, users, count)
    fields = {
        "user": pa.array([f"user-{number}" for number in range(users)]).take(pa.array(user)),
        "page": pa.array([f"/page/{number}" for number in range(40)]).take(
            pa.array(dice.integers(0, 40, count))
        ),
        "at": times(seconds),
    }
    nobody = pa.array(np.arange(count) % 1_000 == 999)
    key = fields["user"]
    fields["user"] = pc.if_else(nobody, pa.scalar(None, pa.string()), key)
    return records(key, fields)


def last_click() -> pa.Table:
    """A click of much later, which completes every session before it."""
    fields = {
        "user": pa.array(["later"]),
        "page": pa.array(["/"]),
        "at": times(np.array([200_000])),
    }
    return records(fields["user"], fields)


def changes(count: int = 10_000, accounts: int = 500) -> pa.Table:
    """A database's changes: creations, updates, deletions followed by tombstones."""
    dice = np.random.default_rng(SEED)
    account = dice.integers(0, accounts, count)
    balance = dice.integers(0, 1_000_000, count)
    kind = np.select([dice.random(count) < 0.1], ["d"], "u")
    ids, cents = pa.array(account), pa.array(balance)
    row = pc.binary_join_element_wise(
        '{"id":', ids.cast(pa.string()), ',"owner":"owner ', ids.cast(pa.string()),
        '","balance":', pc.divide(cents.cast(pa.float64()), 100).cast(pa.string()), "}", "",
    )  # fmt: skip
    deleted = pa.array(kind == "d")
    before = pc.if_else(deleted, row, "null")
    after = pc.if_else(deleted, "null", row)
    value = pc.binary_join_element_wise(
        '{"op":"', pa.array(kind), '","ts_ms":', pa.array(np.arange(count)).cast(pa.string()),
        ',"before":', before, ',"after":', after, "}", "",
    ).cast(pa.binary())  # fmt: skip
    key = ids.cast(pa.string()).cast(pa.binary())
    table = pa.table({"key": key, "value": value, "order": np.arange(count) * 2})
    tombstones = pa.table(
        {
            "key": key.filter(deleted),
            "value": pa.nulls(pc.sum(deleted).as_py(), pa.binary()),
            "order": pa.array(np.arange(count) * 2 + 1).filter(deleted),
        }
    )
    return pa.concat_tables([table, tombstones]).sort_by("order").drop_columns(["order"])


def readings(count: int = 40_000, devices: int = 50) -> pa.Table:
    """Temperatures over an hour; device 0 sends six readings of ten, some of which are broken."""
    dice = np.random.default_rng(SEED)
    device = np.where(dice.random(count) < 0.6, 0, dice.integers(0, devices, count))
    celsius = np.round(dice.normal(20, 5, count), 2)
    celsius[::5_000] = 9_999.0
    names = pa.array([f"device-{number}" for number in range(devices)])
    fields = {
        "device": names.take(pa.array(device)),
        "celsius": pa.array(celsius),
        "at": times(np.sort(dice.integers(0, 3_600, count))),
    }
    return records(fields["device"], fields)


def last_reading() -> pa.Table:
    """A reading of much later, which completes every minute before it."""
    fields = {
        "device": pa.array(["later"]), "celsius": pa.array([1.0]), "at": times(np.array([90_000])),
    }  # fmt: skip
    return records(fields["device"], fields)


def payments(count: int = 10_000, accounts: int = 100) -> pa.Table:
    """Payments; a few have no amount, or are in a currency that nobody knows."""
    dice = np.random.default_rng(SEED)
    account = pa.array([f"a{number}" for number in range(accounts)]).take(
        pa.array(dice.integers(0, accounts, count))
    )
    amount = pa.array(np.round(dice.uniform(-500, 500, count), 2) + 0.0)
    number = np.arange(count)
    currency = pa.array(
        np.where(number % 2_000 == 1_999, "XYZ", np.where(number % 3, "EUR", "USD"))
    )
    fields = {
        "id": pa.array(number),
        "account": account,
        "amount": pc.if_else(
            pa.array(number % 2_500 == 1_234), pa.scalar(None, pa.float64()), amount
        ),
        "currency": currency,
    }
    return records(account, fields)


def planes() -> pa.Table:
    """The planes that the flights' pipeline joins with."""
    return flights_data.read("planes")


MAKERS: Final[Mapping[str, Callable[[], pa.Table]]] = {
    "clicks": clicks,
    "cdc": changes,
    "iot": readings,
    "payments": payments,
    "flights": flights_data.flight_records,
}


def times(seconds: np.ndarray) -> pa.Array:
    """Moments so many seconds after `START`, as text."""
    moments = pa.array(START + seconds.astype("timedelta64[s]"))
    return pc.strftime(moments, format="%Y-%m-%dT%H:%M:%SZ")


def records(key: pa.Array, fields: Mapping[str, pa.Array]) -> pa.Table:
    """Columns as records: the key, and a JSON object of the fields that are not null."""
    parts = []
    for name, column in fields.items():
        text = column.cast(pa.string())
        if pa.types.is_string(column.type):
            text = pc.binary_join_element_wise('"', text, '"', "")
        parts.append(pc.binary_join_element_wise(f'"{name}":', text, ""))
    body = pc.binary_join_element_wise(*parts, ",", null_handling="skip")
    value = pc.binary_join_element_wise("{", body, "}", "")
    return pa.table({"key": key.cast(pa.binary()), "value": value.cast(pa.binary())})


def load(name: str, client: Client, folder: Path) -> int:
    """Create an example's topics and write its records; returns how many.

    Args:
        folder: where the example's pipeline file is; tables that it joins with go beside it.
    """
    for topic, partitions in TOPICS[name].items():
        client.create_topic(topic, partitions=partitions, configs=KEEP, exist_ok=True)
    if name == "flights":
        write_deltalake(str(folder / "planes"), planes(), mode="overwrite")
    table = MAKERS[name]()
    client.write_arrow(next(iter(TOPICS[name])), table)
    return int(table.num_rows)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in MAKERS:
        print(f"name one of {', '.join(MAKERS)}", file=sys.stderr)
        return 2
    name, bootstrap = arguments[0], (arguments[1:] or ["127.0.0.1:9092"])[0]
    with Client(bootstrap) as client:
        count = load(name, client, HERE / name)
    print(f"{count} records in topic {next(iter(TOPICS[name]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
