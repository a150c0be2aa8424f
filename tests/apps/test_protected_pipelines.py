"""Secrets are planted, a pipeline runs with everything on that shows something, and none shows.

What is searched: what the process prints, its status page, Spark's web pages and event log, the
state directory and checkpoints, the table's files, and the command lines of all its processes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from penstock.security.data import token
from penstock.security.data.file_ring import FileKeyRing, _unwrap
from penstock.security.data.key_ring import KEY_BYTES
from penstock.security.data.master_keys import generated, master_keys
from penstock.testing import Broker
from tests.apps.test_pipelines import JAVA, TIMEOUT_SECONDS, command_line, events
from tests.apps.test_serve import environment
from tests.ports import free_port

VARIABLE = "PLANTED_MASTER_KEY"
PIPELINE = f"""
name = "planted"
[run]
keys = "keys"
master_key = "env:{VARIABLE}"
[source.orders]
topic = "orders"
format = "json"
schema = "customer string, note string"
[step.safe]
sql = "select customer as who, customer, note from orders"
[step.safe.protect]
who = {{ by = "tokenize", field = "customer" }}
customer = {{ by = "mask", kind = "keep", last = 1 }}
note = {{ by = "encrypt", subject = "customer" }}
[sink.lake]
from = "safe"
table = "lake"
[errors]
on_invalid = "fail"
"""
PAGES = ("SQL/", "environment/", "jobs/", "stages/", "executors/")


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> str:
    text = generated().decode().strip()
    monkeypatch.setenv(VARIABLE, text)
    return text


def secrets(master: str, ring: FileKeyRing) -> dict[str, bytes]:
    """Every key of a ring, by name, raw."""
    found = {
        "master": b64decode(master),
        "secret": ring._secret,
        "tokens": ring.secret("token:customer"),
    }
    for subject, digest, key_id, wrapped in ring._connection.execute(
        "select subject, digest, key_id, wrapped from keys"
    ):
        found[subject] = _unwrap(ring._present(), wrapped, key_id + digest, Path())
    assert {len(entry) for entry in found.values()} == {KEY_BYTES}
    return found


def forms(secret: bytes) -> Iterator[bytes]:
    """Return the forms in which a secret could be written."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield b64encode(secret).rstrip(b"=")
    yield repr(secret)[2:-1].encode()
    yield ", ".join(map(str, secret)).encode()
    yield ", ".join(str(item - 256 * (item > 127)) for item in secret).encode()  # as Java has bytes


def all_that_shows(folder: Path, port: int) -> list[str]:
    """Options by which Spark shows all that it can."""
    settings = {
        "eventLog.enabled": "true", "eventLog.dir": folder.as_uri(),
        "eventLog.compress": "false", "eventLog.logStageExecutorMetrics": "true",
        "ui.enabled": "true", "ui.port": str(port), "log.level": "DEBUG",
    }  # fmt: skip
    return [f"--set=spark.{name}={value}" for name, value in settings.items()]


def shown_by(port: int, admin: str) -> Iterator[tuple[str, bytes]]:
    """The pages of Spark and the status page."""

    def page(url: str) -> bytes:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bytes(answer.read())

    spark = f"http://127.0.0.1:{port}"
    for name in PAGES:
        yield name, page(f"{spark}/{name}")
    [application] = json.loads(page(f"{spark}/api/v1/applications"))
    where = f"{spark}/api/v1/applications/{application['id']}"
    for name in ("sql?details=true&planDescription=true", "environment", "stages"):
        yield name, page(f"{where}/{name}")
    for name in ("status", "metrics"):
        yield name, page(f"{admin}/{name}")


def searched(shown: dict[str, bytes], planted: dict[str, bytes]) -> list[tuple[str, str]]:
    return [
        (place, name)
        for place, text in shown.items()
        for name, secret in planted.items()
        if any(form in text for form in forms(secret))
    ]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_no_secret_shows_anywhere(tmp_path: Path, master: str) -> None:
    ring = FileKeyRing.create(tmp_path / "keys", master_keys(f"env:{VARIABLE}"))
    (tmp_path / "p.toml").write_text(PIPELINE)
    (tmp_path / "events").mkdir()
    port = free_port()
    with Broker() as broker, broker.client() as client:
        client.create_topic("orders", 1)
        values = [{"customer": f"c{n % 5}", "note": f"note {n}"} for n in range(100)]
        client.write_arrow(
            "orders", pa.table({"value": [json.dumps(value).encode() for value in values]})
        )
        words = ["run", str(tmp_path / "p.toml"), "-b", broker.bootstrap, "--debug"]
        words += ["--admin", broker.admin_url or "", "--master", "local[2]"]
        words += all_that_shows(tmp_path / "events", port)
        with (
            (tmp_path / "err").open("wb") as err,
            subprocess.Popen(
                command_line(*words),
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=environment(**JAVA),
            ) as process,
        ):
            try:
                assert process.stdout is not None
                started = json.loads(process.stdout.readline())
                done = events(process.stdout, lambda event: event.get("rows") == 100)
                planted = secrets(master, ring)
                assert len(planted) == 3 + 5
                shown = dict(shown_by(port, started["admin"]))
                for child in psutil.Process(process.pid).children(recursive=True):
                    shown[f"process {child.pid}"] = Path(f"/proc/{child.pid}/cmdline").read_bytes()
                process.send_signal(signal.SIGTERM)
                shown["stdout"] = json.dumps([started, done]).encode()
                shown["stdout"] += process.stdout.read().encode()
                assert process.wait(TIMEOUT_SECONDS) == 0
            finally:
                process.kill()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "keys" not in path.parts]
    shown |= {str(path.relative_to(tmp_path)): path.read_bytes() for path in files}
    assert searched(shown, planted) == []
    # The plans were there to be searched, and the search finds what is there.
    plans = [place for place, text in shown.items() if b"penstock_encrypt" in text]
    assert any(place.startswith("events/") for place in plans)
    assert any(place.startswith("sql?") for place in plans)
    assert len([place for place in shown if place.startswith("process ")]) >= 2
    control = b"x" + planted["c1"].hex().encode()
    assert searched({"control": control}, planted) == [("control", "c1")]
    assert any(token(ring, "customer", b"c1").encode() in text for text in shown.values())
    wrong = environment(**JAVA | {VARIABLE: generated().decode()})
    refused = subprocess.run(
        command_line(*words), capture_output=True, timeout=TIMEOUT_SECONDS, env=wrong, check=False
    )
    said = refused.stdout + refused.stderr
    assert refused.returncode == 1
    assert b"p.toml:4: run.keys: the keys of" in said
    assert searched({"said": said}, planted | {"wrong": b64decode(wrong[VARIABLE])}) == []
