"""Workers that Spark leaves say nothing of it: the daemons as Spark starts them, without Spark."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spark.sessions.source import PenstockSource
from tests.sampling import sample
from tests.spark.conftest import until

WORKER = "pyspark_worker_of_this_test"
"""Spark's daemon takes modules whose names begin so."""
CODE = """
import {data_source}

def main(infile, outfile):
    infile.read()
    if {fails}:
        raise ValueError("a failure of its own")
    outfile.write(b"unread output")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of a short name: the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("told_to_raise", sample([False, True], 2))
@pytest.mark.parametrize("fails", sample([False, True], 2))
@pytest.mark.parametrize(
    ("daemon", "data_source"),
    [
        ("pyspark.daemon", "pyspark_penstock"),
        ("pyspark.daemon", "penstock.spark.sessions.source"),
        ("penstock.spark.reads.daemon", "os"),
    ],
)
def test_a_worker_that_was_left(
    folder: Path, daemon: str, data_source: str, fails: bool, told_to_raise: bool
) -> None:
    (folder / f"{WORKER}.py").write_text(CODE.format(data_source=data_source, fails=fails))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
    }
    environment |= {"PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"} if told_to_raise else {}
    with subprocess.Popen(
        [sys.executable, "-m", daemon, WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        (size,) = struct.unpack("!i", process.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as spark:
            spark.connect(process.stdout.read(size))
            (worker,) = struct.unpack("!i", spark.recv(4, socket.MSG_WAITALL))
        until("the worker has ended", lambda: not Path(f"/proc/{worker}").exists())
        _, said = process.communicate()
    assert (b"Traceback" in said) is fails, said.decode()
    assert (b"a failure of its own" in said) is fails


@pytest.mark.parametrize(
    ("source", "told"), [(PenstockSource, False), (OrderedDict, True)], ids=["ours", "another"]
)
def test_a_process_beside_a_stream_that_was_left(folder: Path, source: type, told: bool) -> None:
    texts = [f"{sys.version_info.major}.{sys.version_info.minor}", str(folder)]
    said = b"".join(struct.pack("!i", len(text)) + text.encode() for text in texts)
    pickled = pickle.dumps(source)
    said += struct.pack("!ii", 0, len(pickled)) + pickled
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "spark"))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", "pyspark.sql.streaming.python_streaming_source_runner"],
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHON_WORKER_FACTORY_SOCK_PATH": str(folder / "spark")},
        )
        with process:
            with listener.accept()[0] as spark:
                spark.recv(4, socket.MSG_WAITALL)
                spark.shutdown(socket.SHUT_RD)  # before there is anything to answer
                spark.sendall(said)
            _, error = process.communicate()
    assert (b"Traceback" in error) is told, error.decode()


KERNELS = "penstock.kernels.compiling"


@pytest.mark.parametrize(
    ("loaded", "spared"),
    [
        ("spark.sessions.source", {KERNELS, "pyarrow.compute", "penstock.spark.reads.reading"}),
        ("spark.formats.decoders", {KERNELS, "penstock.spark.reads.reading"}),
    ],
)
def test_planners_load_nothing_that_opens_records(loaded: str, spared: set[str]) -> None:
    """Spark starts a process for each step of planning; what it imports is waited for."""
    code = f"import sys, penstock.{loaded}, penstock.client; print({spared} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


ROUNDS = """
import resource
import sys
import numpy as np
from penstock.base.system import keep_memory

def pages():
    for block in [np.empty(24 << 20, np.uint8) for _ in range(4)]:
        block[:: 4 << 10] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if {kept}:
    keep_memory()
taken = [pages() for _ in range(6)]
print(taken[-1] - taken[2])
"""


def test_what_a_worker_frees_serves_its_next_batch() -> None:
    small = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    taken = [
        int(subprocess.check_output([sys.executable, "-c", ROUNDS.format(kept=kept)], env=small))
        for kept in (False, True)
    ]
    pages = 3 * 4 * (24 << 20) // (4 << 10)
    assert taken[0] > pages // 2, "the C library keeps it by default"
    assert taken[1] < pages // 100


def test_planners_do_not_import_pandas() -> None:
    """Each Python process of a source would import it again, for 0.2 s."""
    modules = "penstock.spark.sessions.source, penstock.spark.pipeline.runner"
    code = f"import sys, {modules}; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert done.stdout.split() == [b"False"]
