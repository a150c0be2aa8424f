"""What protecting a field costs: masks, tokens, encryption; by columns, and in Spark.

By columns, in one thread, the reference is OpenSSL called once for each value and nothing around
it. In Spark it is the same rows with nothing done, and for encryption Spark's own `aes_encrypt`
with one literal key (which its plans show; see decision 0051).

Prediction, from single calls timed by hand: AES-GCM of 20 bytes is 1.1 µs from Python and a new
cipher 1.3, HMAC-SHA-256 2.8; around them a row costs a few steps of a Python loop, 0.4 µs, and the
ways from and to Arrow 0.2. So encryption is 0.6 M rows/s a core where subjects repeat, tokens of
distinct values 0.3, of ten times repeated ones 2. A ring looks up a subject that it has in memory
in 0.2 µs, one from the file in 10, and makes one in 15. In Spark, a row to a Python worker and
back is 0.5 µs on top; masks by its own expressions are 1 µs a row, and `aes_encrypt` about that.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import Row, seconds
from penstock.security.data import (
    KeyPlace,
    Mask,
    decrypt_column,
    encrypt_column,
    mask_column,
    ring_at,
    tokenize_column,
)
from penstock.security.data.file_ring import FileKeyRing
from penstock.security.data.master_keys import master_keys
from penstock.spark import session
from penstock.spark.pipeline.protecting import protected
from penstock.spark.pipeline.spec import Protection, Step

ROWS, ROWS_QUICK = 1_000_000, 100_000
SPARK_ROWS, SPARK_ROWS_QUICK = 4_000_000, 400_000
RUNS, RUNS_QUICK = 5, 1
REPEATED: Final = 10
"""Rows of one subject, and of one value."""
EMAIL: Final = Mask(kind="email")
NOTHING: Final = "nothing"
NATIVE: Final = "aes_encrypt"
PREDICTED: Final = {
    "mask": 3.0, "tokens, distinct": 0.3, "tokens, repeated": 2.0, "encrypt": 0.6,
    "decrypt": 0.6, "new subjects": 0.06, NOTHING: 20.0, NATIVE: 2.0, "mask in Spark": 2.0,
    "tokens in Spark": 0.5, "encrypt in Spark": 0.8,
}  # fmt: skip
"""Million rows (or subjects) a second."""
_STEPS: Final = {
    "mask in Spark": Protection(column="mail", by="mask", kind="email"),
    "tokens in Spark": Protection(column="mail", by="tokenize"),
    "encrypt in Spark": Protection(column="mail", by="encrypt", subject="customer"),
}


def measure(*, quick: bool = False) -> list[Row]:
    """Rows a second, one thread by columns, and two cores of Spark."""
    with tempfile.TemporaryDirectory(
        prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")
    ) as folder:
        place = KeyPlace(ring=Path(folder) / "keys")
        FileKeyRing.create(place.ring, master_keys(place.master_place)).close()
        runs = RUNS_QUICK if quick else RUNS
        return [
            *_by_columns(ring_at(place), ROWS_QUICK if quick else ROWS, runs),
            *_in_spark(place, SPARK_ROWS_QUICK if quick else SPARK_ROWS, runs),
        ]


def _medians(
    actions: Mapping[str, Callable[[], object]], count: int, runs: int
) -> dict[str, float]:
    """Million rows a second of each, runs interleaved; the first run warms up."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for run in range(runs + 1):
        for name, action in actions.items():
            taken = seconds(action)
            if run:
                found[name].append(count / taken / 1e6)
    return {name: statistics.median(taken) for name, taken in found.items()}


def _by_columns(ring: FileKeyRing, count: int, runs: int) -> Iterator[Row]:
    numbers = np.arange(count)
    distinct = pa.array([f"someone-{number}@example.org" for number in numbers])
    few = numbers % (count // REPEATED)
    repeated, subjects = distinct.take(pa.array(few)), pa.array(few)
    sealed = encrypt_column(distinct, subjects, ring)
    alone, nonce, values = AESGCM(bytes(32)), bytes(12), distinct.cast(pa.binary()).to_pylist()
    fresh = iter(range(runs + 1))

    def openssl() -> None:
        for value in values:
            alone.encrypt(nonce, value, b"")

    def new_subjects() -> None:
        first = next(fresh) * count
        ring.for_encryption([f"new-{first + number}" for number in range(count)])

    found = _medians(
        {
            "OpenSSL": openssl,
            "mask": lambda: mask_column(distinct, EMAIL),
            "tokens, distinct": lambda: tokenize_column(distinct, ring, "mail"),
            "tokens, repeated": lambda: tokenize_column(repeated, ring, "mail"),
            "encrypt": lambda: encrypt_column(distinct, subjects, ring),
            "decrypt": lambda: decrypt_column(sealed, subjects, ring),
            "new subjects": new_subjects,
        },
        count,
        runs,
    )
    reference = found.pop("OpenSSL")
    for name, value in found.items():
        yield _row(f"columns: {name}", name, value, reference, "OpenSSL alone")


def _in_spark(place: KeyPlace, count: int, runs: int) -> Iterator[Row]:
    spark = session(application="benchmark", cores=2, settings={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        frame = _frame(spark, count)
        native = frame.selectExpr(
            "customer", "aes_encrypt(mail, unhex(repeat('00', 32)), 'GCM', 'DEFAULT', '',"
            " cast(customer as string)) as mail",
        )  # fmt: skip
        frames = {NOTHING: frame, NATIVE: native}
        for name, protection in _STEPS.items():
            step = Step(name="safe", sql="", protections=(protection,))
            frames[name] = protected(frame, step, place)
        found = _medians({name: _writing(written) for name, written in frames.items()}, count, runs)
    finally:
        spark.stop()
    for name in (NATIVE, *_STEPS):
        against = NATIVE if name == "encrypt in Spark" else NOTHING
        yield _row(
            f"Spark: {name.removesuffix(' in Spark')}", name, found[name], found[against], against
        )
    yield Row(
        name="Spark: nothing", value=found[NOTHING], unit="M rows/s", prediction=PREDICTED[NOTHING]
    )


def _frame(spark: SparkSession, count: int) -> DataFrame:
    subjects = count // REPEATED
    return spark.range(0, count, 1, 8).selectExpr(
        f"id % {subjects} as customer", "concat('someone-', id, '@example.org') as mail"
    )


def _writing(frame: DataFrame) -> Callable[[], None]:
    return frame.write.format("noop").mode("overwrite").save


def _row(shown: str, name: str, value: float, reference: float, against: str) -> Row:
    return Row(
        name=shown, value=value, unit="M rows/s", prediction=PREDICTED[name], reference=reference,
        reference_name=against,
    )  # fmt: skip
