"""Values of the control plane cost those who need nothing else of it little to load."""

from __future__ import annotations

import subprocess
import sys

import penstock.control


def test_every_name_has_a_home() -> None:
    assert [name for name in penstock.control.__all__ if not hasattr(penstock.control, name)] == []
    assert not hasattr(penstock.control, "Nothing")


def test_the_source_of_spark_loads_no_database() -> None:
    code = (
        "import sys, penstock.spark.sessions.source;"
        " print({'sqlite3', 'asyncpg'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()", done.stdout
