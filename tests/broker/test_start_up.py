"""Modules that a broker must not load before it is ready."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.testing import Broker

MODULES = Path(__file__).parent / "start_up_modules.txt"
UNUSED_MAX = 10
"""How many listed modules may be unused before the list has to follow."""
API_VERSIONS_0 = bytes.fromhex("0000000a 0012 0000 00000001 0000")
"""Frame of an ApiVersions request, version 0, with an empty client id."""

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


def test_a_plain_broker_imports_the_listed_modules_alone(tmp_path: Path) -> None:
    """Modules of the product, and other packages, that are imported before the first answer.

    To accept a change, delete the list and run this test: it writes the list again, and fails.
    """
    loaded = modules_before_the_first_answer(tmp_path)
    if not MODULES.exists():
        MODULES.write_text("".join(f"{name}\n" for name in sorted(loaded)))
        pytest.fail(f"{MODULES.name} was written")
    listed = {*MODULES.read_text().split()}
    assert loaded - listed == set(), "import these when they are first used"
    assert len(listed - loaded) <= UNUSED_MAX, listed - loaded


def modules_before_the_first_answer(directory: Path) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "penstock", "serve", "--data-dir"]
    addresses = ["--listener", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    imported = directory / "imported"
    with (
        imported.open("w") as errors,
        subprocess.Popen(
            [*command, str(directory / "data"), *addresses], stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().decode()
            port = int(ready.split("kafka=127.0.0.1:")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                client.sendall(API_VERSIONS_0)
                assert client.recv(4)
        finally:
            process.terminate()
    names = {
        line.rpartition("|")[2].strip()
        for line in imported.read_text().splitlines()
        if line.startswith("import time:")
    }
    foreign = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    return {
        *(name for name in names if name.startswith("penstock.")),
        *(name for name in foreign if name.isidentifier() and not name.startswith("_")),
    }


def test_the_schemas_load_without_hypothesis() -> None:
    code = (
        "import sys\n"
        "from penstock.wire.kafka.encoder import encoder\n"
        "encoder('Metadata', 12, 'response')\n"
        "print('hypothesis' in sys.modules, 'kio.schema.errors' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
