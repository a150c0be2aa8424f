"""Modules that a broker must not load before it is ready."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from penstock.testing import Broker

HEAVY = (
    "kio", "pyarrow", "numpy", "pandas", "starlette", "uvicorn", "rich", "hypothesis",
    "prometheus_client",
)  # fmt: skip


def test_importing_the_server_loads_nothing_heavy() -> None:
    code = (
        "import sys, penstock.broker.server\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_running_broker_with_a_topic_has_loaded_no_arrays(tmp_path: Path) -> None:
    """Neither before it is ready, nor with a topic, nor for a record that it stores and serves."""
    with Broker(directory=tmp_path, process=True) as broker:
        broker.create_topic("t")
    with Broker(directory=tmp_path, process=True) as broker, broker.client() as client:
        client.write_arrow("t", pa.table({"value": [b"value"]}))
        assert client.read_arrow("t")["value"].to_pylist() == [b"value"]
        libraries = Path(f"/proc/{broker.pid}/maps").read_text()
        assert "libcrypto" in libraries
        assert [name for name in ("pyarrow", "numpy", "numba") if f"/{name}/" in libraries] == []


def test_the_schemas_load_without_hypothesis() -> None:
    code = (
        "import sys\n"
        "from penstock.wire.kafka.encoder import encoder\n"
        "encoder('Metadata', 12, 'response')\n"
        "print('hypothesis' in sys.modules, 'kio.schema.errors' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
