"""A real PostgreSQL server for tests: made in a temporary directory, ended with the session.

The programs are those of the machine (`PATH`, Debian's `/usr/lib/postgresql/*/bin`), else Debian's
packages, fetched and unpacked without being installed. Where neither is available, tests are
skipped, or fail where `PENSTOCK_REQUIRE_INTEROP=1`.

The server refuses to run as root; under root it runs as another system user. It listens on a Unix
socket and on a free port, of loopback by default. It syncs only if it is asked to: what it has
written outlives a crash of the server anyhow, and no test brings about one of the machine. Each
test gets a schema of its own, or a database where it matters.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
from compat.parts import PartMissing, debian, postgres_17

from tests.machine import lacking
from tests.ports import free_port

START_SECONDS = 60.0
USER = "penstock"
SCHEMAS_AT_ONCE = 50
_SETTINGS = (
    "shared_buffers=32MB",
    "max_connections=100",
    "max_wal_size=256MB",
    "jit=off",
    "log_min_messages=warning",
    "log_line_prefix=%m [%p] %a ",
)


class PostgresServer:
    """Cluster of databases and the process that serves it; may be stopped and restarted."""

    def __init__(
        self,
        programs: Path,
        directory: Path,
        *,
        durable: bool = False,
        host: str = "127.0.0.1",
        settings: tuple[str, ...] = (),
    ) -> None:
        self._programs = programs
        self._host = host
        self.directory = directory
        self._durable = durable
        self._settings = settings
        self._numbers = itertools.count(1)
        self._schemas: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def url(self, database: str, *, port: int | None = None) -> str:
        """Return a database's URL; `port` is that of a proxy before the server."""
        return f"postgresql://{USER}@{self._host}:{port or self.port}/{database}"

    def create(self) -> None:
        """Make the files of a new, empty cluster."""
        self.directory.chmod(0o700)
        if os.geteuid() == 0:
            account = _account()
            os.chown(self.directory, account.pw_uid, account.pw_gid)
        self._run(
            "initdb", "--pgdata", str(self.directory / "data"), "--username", USER, "--auth=trust",
            "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions",
        )  # fmt: skip
        with (self.directory / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all all trust\n")  # whoever reaches the address

    def start(self) -> None:
        """Start the process and wait until it answers."""
        settings = [
            *_SETTINGS,
            f"fsync={'on' if self._durable else 'off'}",
            f"port={self.port}",
            f"listen_addresses={self._host}",
            f"unix_socket_directories={self.directory}",
            *self._settings,
        ]
        command = [str(self._programs / "postgres"), "-D", str(self.directory / "data")]
        for setting in settings:
            command += ["-c", setting]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd="/",
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._env(),
                **_identity(),
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PartMissing(f"PostgreSQL does not start:\n{self.log()}")
            time.sleep(0.02)

    def stop(self, *, crash: bool = False) -> None:
        """End the process: a fast shutdown, or as a crash ends it."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
        self._process.wait(START_SECONDS)
        self._process = None

    def freeze(self, *, thaw: bool = False) -> None:
        """Have it hold still, connections and all, as a machine that hangs; `thaw` ends that."""
        assert self._process is not None
        pid = self._process.pid
        number = signal.SIGCONT if thaw else signal.SIGSTOP
        self._process.send_signal(number)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), number)

    def another(self, directory: Path) -> PostgresServer:
        """Return a server of the same programs and settings for a copy of the files."""
        return PostgresServer(
            self._programs,
            directory,
            durable=self._durable,
            host=self._host,
            settings=self._settings,
        )

    def log(self) -> str:
        """The end of the server's log."""
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def execute(self, *statements: str, database: str = "postgres") -> None:
        """Run statements as the superuser, each in a transaction of its own."""

        async def run() -> None:
            connection = await asyncpg.connect(self.url(database), timeout=START_SECONDS)
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        _outside_of_loops(run)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create a database, dropped in the end also with open connections; return its name."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield name
        finally:
            if self._process is not None:
                self._drop(name)

    def _drop(self, name: str) -> None:
        """Drop a database with its replication slots, whose readers may be ending just now."""
        slots = f"FROM pg_replication_slots WHERE database = '{name}'"
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.execute(
                    f"SELECT pg_terminate_backend(active_pid) {slots} AND active",
                    f"SELECT pg_drop_replication_slot(slot_name) {slots} AND NOT active",
                    f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
                )
                return
            except asyncpg.ObjectInUseError:
                if time.monotonic() > deadline:
                    raise

    def schema(self) -> str:
        """The URL of an empty schema that no other test has; cheaper than a database by far."""
        if not self._schemas:
            self._schemas = [f"test_{next(self._numbers)}" for _ in range(SCHEMAS_AT_ONCE)]
            self.execute("; ".join(f"CREATE SCHEMA {name}" for name in self._schemas))
        return f"{self.url('postgres')}?search_path={self._schemas.pop()}"

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    def _env(self) -> dict[str, str]:
        libraries = self.directory.glob("packages/usr/lib/*-linux-*")
        path = ":".join(str(found) for found in libraries)
        own = {"LD_LIBRARY_PATH": path} if path else {}
        return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", **own}

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / name), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
            env=self._env(),
            **_identity(),
        )
        if done.returncode:
            raise PartMissing(f"{name} ended with status {done.returncode}:\n{done.stderr}")


@contextmanager
def postgres_server(
    *,
    durable: bool = False,
    host: str = "127.0.0.1",
    settings: tuple[str, ...] = (),
    version_17: bool = False,
) -> Iterator[PostgresServer]:
    """A running server with nothing in it, at an address of this machine; gone in the end.

    `version_17`: PostgreSQL 17 from its package, instead of the machine's version.
    """
    # A short path, as a Unix socket's must be, and one that another user may enter.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as name:
        directory = Path(name)
        try:
            server = PostgresServer(
                _programs_17(directory) if version_17 else programs(directory),
                directory,
                durable=durable,
                host=host,
                settings=settings,
            )
            server.create()
            server.start()
        except PartMissing as error:
            lacking(f"there is no PostgreSQL: {error}")
        try:
            yield server
        finally:
            server.stop(crash=True)  # nobody needs what it would still write


def programs(directory: Path) -> Path:
    """Return the path of `initdb` and `postgres`; they are fetched into a directory if need be.

    Raises:
        PartMissing: not installed, and not to be fetched.
    """
    on_path = shutil.which("postgres")
    if on_path is not None and shutil.which("initdb"):
        return Path(on_path).resolve().parent
    found = _below(Path("/")) or _below(_fetched(directory))
    if found is None:
        raise PartMissing("the package postgresql has no usr/lib/postgresql/*/bin/postgres")
    return found


def _programs_17(directory: Path) -> Path:
    """The programs of PostgreSQL 17, copied to where the server's user may read them."""
    native = postgres_17().parent
    shutil.copytree(native, directory / "native")
    return directory / "native" / "bin"


def _fetched(directory: Path) -> Path:
    """The unpacked packages, copied to where the server's user may read them."""
    place = directory / "packages"
    unneeded = shutil.ignore_patterns("bitcode", "llvmjit*", "libLLVM*", "locale", "doc", "man")
    shutil.copytree(debian("postgresql") / "usr", place / "usr", symlinks=True, ignore=unneeded)
    return place


def _below(root: Path) -> Path | None:
    """The newest PostgreSQL of Debian's below a root directory."""
    found = [path.parent for path in root.glob("usr/lib/postgresql/*/bin/postgres")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def _account() -> pwd.struct_passwd:
    """Return the server's user where tests run as root."""
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


def owner() -> tuple[int, int]:
    """Return the user and group of the server's files."""
    if os.geteuid() != 0:
        return os.getuid(), os.getgid()
    account = _account()
    return account.pw_uid, account.pw_gid


def _identity() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    account = _account()
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _outside_of_loops(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a thread, as a test's own loop may be running in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(run())).result()
