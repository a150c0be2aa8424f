"""Modules that a broker must not load before it is ready."""

from __future__ import annotations

import subprocess
import sys

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


def test_the_schemas_load_without_hypothesis() -> None:
    code = (
        "import sys\n"
        "from penstock.wire.kafka.encoder import encoder\n"
        "encoder('Metadata', 12, 'response')\n"
        "print('hypothesis' in sys.modules, 'kio.schema.errors' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
