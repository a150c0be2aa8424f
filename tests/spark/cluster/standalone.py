"""A standalone Spark cluster as processes of this machine: one master, workers of one core each.

Everything comes from the PySpark wheel; executors are Java processes of their own, children of
their worker. Ports are chosen by the system and read from the logs. Only processes that were
started here are ended, by their ids.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyspark

WAIT_SECONDS = 120.0
"""Longest time for a Java process to say that it runs; the machine may be busy."""
END_SECONDS = 20.0
WORKER_MEMORY = "1g"
_HOME = Path(pyspark.__file__).parent
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux."""
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"


class ClusterFailed(RuntimeError):
    """A process of the cluster did not start."""


class StandaloneCluster:
    """A master and its workers; `with StandaloneCluster(tmp_path, workers=2) as cluster`."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._wanted = workers
        self._started = 0
        self.url = ""

    def __enter__(self) -> StandaloneCluster:
        try:
            self._start_master()
            for _ in range(self._wanted):
                self._launch_worker()
            for number in range(self._wanted):
                self._await(self._workers[number], f"worker-{number}", "registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add_worker(self) -> None:
        """One more worker, registered when this returns."""
        name = self._launch_worker()
        self._await(self._workers[-1], name, "registered with master")

    def executors(self) -> list[psutil.Process]:
        """The executors' Java processes, oldest first."""
        found: list[psutil.Process] = []
        for worker in self._workers:
            if worker.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    children = psutil.Process(worker.pid).children()
                    found += [child for child in children if _is_executor(child)]
        return sorted(found, key=lambda process: process.create_time())

    def stop(self) -> None:
        """End everything that was started here, the executors included."""
        executors = self.executors()
        processes = [*self._workers, *([self._master] if self._master else [])]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_SECONDS)
        _, alive = psutil.wait_procs(executors, timeout=END_SECONDS)
        for executor in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                executor.kill()
        self._workers.clear()
        self._master = None

    def _start_master(self) -> None:
        self._master = self._launch(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
        )
        found = self._await(self._master, "master", r"Starting Spark master at (spark://\S+)")
        self.url = found.group(1)

    def _launch_worker(self) -> str:
        name = f"worker-{self._started}"
        self._started += 1
        worker = self._launch(
            name,
            "org.apache.spark.deploy.worker.Worker",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            *("--cores", "1", "--memory", WORKER_MEMORY),
            *("--work-dir", str(self._directory / name), self.url),
        )
        self._workers.append(worker)
        return name

    def _launch(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._directory.mkdir(parents=True, exist_ok=True)
        # What a session set for its own planners must not be what makes the executors work.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "PYSPARK_", "SPARK_", "PYTHON"))
        }
        environment = {
            **kept,
            "SPARK_HOME": str(_HOME),
            "SPARK_CONF_DIR": str(self._directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
        }
        with self._log(name).open("wb") as log:
            # The script becomes the Java process, so the id is that of the latter.
            return subprocess.Popen(
                [str(_HOME / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _await(self, process: subprocess.Popen[bytes], name: str, text: str) -> re.Match[str]:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            said = self._log(name).read_text(errors="replace")
            if found := re.search(text, said):
                return found
            if process.poll() is not None or time.monotonic() > deadline:
                raise ClusterFailed(f"{name} did not say {text!r}:\n{said[-4000:]}")
            time.sleep(0.1)


def _end_with_parent() -> None:
    # A test run that is killed must not leave a cluster behind.
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any("ExecutorBackend" in word for word in process.cmdline())
    return False
