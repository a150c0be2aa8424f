"""Source archive and wheel: what they have, that they are reproducible, and that they work."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import click
import pytest
from scripts import dist

from penstock import __version__
from penstock.apps.cli import root

ROOT = Path(__file__).resolve().parent.parent
INSTALLED_BYTES_MAX = 350 << 20
"""Largest size of an environment with a plain installation, with pip and compiled files."""
INSTALL_SECONDS_MAX = 600
COMMAND_SECONDS_MAX = 120
DATA = ("*.sql", "*.toml", "*.css", "*.js", "*.html", "*.svg", "*.properties", "py.typed", "*.txt",
        "*.jsonl", "*.md")  # fmt: skip
FOREIGN = """
import sys
from confluent_kafka import Consumer, Producer

producer = Producer({"bootstrap.servers": sys.argv[1]})
for value in ("one", "two"):
    producer.produce("orders", value)
assert producer.flush(60) == 0
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": "readers", "auto.offset.reset": "earliest",
})
consumer.subscribe(["orders"])
found = []
while len(found) < 2:
    message = consumer.poll(60)
    assert message is not None and message.error() is None, message
    found.append(message.value().decode())
consumer.commit(asynchronous=False)
print(*found)
"""
"""Program of a foreign Kafka client that writes records and reads them in a group."""
SCHEMA = '{"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive, and the wheel without the machine code of the kernels."""
    return dist.build(tmp_path_factory.mktemp("dist"), pure=True)


def names_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def source_data() -> set[str]:
    """The files of the packages that are not code, by their place in the wheel."""
    return {
        str(path.relative_to(ROOT / "src"))
        for pattern in DATA
        for path in (ROOT / "src").rglob(pattern)
        if ".egg-info" not in str(path) and path.name != "README.md"
    }


def test_the_wheel_has_all_files(built: tuple[Path, Path]) -> None:
    names = names_in(built[1])
    packed = set(dist.packed_files(ROOT))
    code = {name.removeprefix("src/") for name in packed if name.endswith((".py", ".pyi"))}
    assert code - {"setup.py"} - names == set()
    assert {name for name in source_data() if f"src/{name}" in packed} - names == set()
    assert "penstock/wire/frames/header_pb2.py" in names


def test_the_wheel_has_manual_pages_and_completions(built: tuple[Path, Path]) -> None:
    names = {name.partition(".data/data/")[2] for name in names_in(built[1])}
    assert isinstance(root, click.Group)
    pages = {
        f"share/man/man1/penstock-{name}.1" for name in root.list_commands(click.Context(root))
    }
    assert {"share/man/man1/penstock.1", *pages} - names == set()
    assert {f"share/{place}" for place in dist.COMPLETIONS.values()} - names == set()


def test_the_wheel_says_what_it_needs(built: tuple[Path, Path]) -> None:
    with ZipFile(built[1]) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", text, re.MULTILINE)
    assert {"click", "msgspec", "numpy"} <= set(needed)
    assert {"numba", "pyarrow", "pyspark", "matplotlib", "sqlglot"} & set(needed) == set()
    extras = set(re.findall(r"^Provides-Extra: (\w+)$", text, re.MULTILINE))
    assert extras == {
        "client", "compile", "connect", "demo", "iceberg", "pipelines", "plots", "spark",
    }  # fmt: skip


def test_the_source_archive_is_normalized(built: tuple[Path, Path]) -> None:
    archive = built[0]
    seconds = dist.commit_seconds(ROOT)
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
        assert {member.mtime for member in members} == {seconds}
        assert {(member.uid, member.uname) for member in members} == {(0, "")}
        names = [member.name for member in members]
    assert names == sorted(names)
    assert dist.normalized(archive.read_bytes(), seconds) == archive.read_bytes()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_wheels_of_one_archive_are_equal(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Also the machine code of the kernels."""
    seconds = dist.commit_seconds(ROOT)
    first, second = (
        dist.wheel(built[0], tmp_path / name, seconds).read_bytes() for name in ("1", "2")
    )
    assert first == second


# The platform wheel in an empty environment.


class Installed:
    """Environment in which pip has installed a wheel or a source tree, and what that requires.

    `extra` is one of Penstock, and `others` are other packages.
    """

    def __init__(self, folder: Path, source: Path, *others: str, extra: str | None = None) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        known = re.findall(
            r"^([\w.-]+==[^\\\n]+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE
        )
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(known))
        subprocess.run(
            [str(folder / "bin/python"), "-m", "pip", "install", "--quiet",
             "--disable-pip-version-check", "--constraint", str(constraints), *others,
             f"{source}[{extra}]" if extra else str(source)],
            check=True, timeout=INSTALL_SECONDS_MAX,
        )  # fmt: skip

    def words(self, *words: str) -> list[str]:
        return [str(self.folder / "bin/penstock"), *words]

    def environment(self) -> dict[str, str]:
        given = {name: text for name, text in os.environ.items() if "PYTHON" not in name}
        return given | {"HOME": str(self.folder), "PENSTOCK_KERNELS": str(self.folder / "none")}

    def run(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run(
            self.words(*words), input=stdin, capture_output=True, text=True, check=False,
            env=self.environment(), cwd=self.folder, timeout=COMMAND_SECONDS_MAX,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    @contextmanager
    def broker(self, directory: Path) -> Iterator[dict[str, str]]:
        """A broker with a schema registry: the addresses of its listeners by name."""
        listeners = [f"{flag}=127.0.0.1:0" for flag in ("--listener", "--admin")]
        settings = ["-X", "registry.enable=true", "-X", "registry.listener=127.0.0.1:0"]
        words = self.words("serve", "--data-dir", str(directory), *listeners, *settings)
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env=self.environment()
        ) as process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline().split()
                yield dict(word.split("=") for word in ready if "=" in word)
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def platform_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _, wheel = dist.build(tmp_path_factory.mktemp("platform"))
    assert wheel.name.endswith(f"-cp311-abi3-linux_{os.uname().machine}.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, platform_wheel: Path) -> Installed:
    """The plain installation beside a foreign Kafka client."""
    return Installed(tmp_path_factory.mktemp("plain"), platform_wheel, "confluent-kafka")


@pytest.fixture(scope="module")
def with_client(tmp_path_factory: pytest.TempPathFactory, platform_wheel: Path) -> Installed:
    return Installed(tmp_path_factory.mktemp("client"), platform_wheel, extra="client")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pip_installs_a_clone_with_its_machine_code(tmp_path: Path) -> None:
    """In pip's isolated build environment, as the guide to installing says."""
    words = ["git", "-C", str(ROOT), "archive", "HEAD"]
    packed = subprocess.run(words, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path / "clone", filter="data")
    made = Installed(tmp_path / "environment", tmp_path / "clone")
    assert made.run("--version").split()[-1] == __version__
    assert "_native" in made.run("kernels")
    assert not [*made.folder.glob("lib/python*/site-packages/numba")]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_installation_is_small(installed: Installed) -> None:
    files = [path for path in installed.folder.rglob("*") if path.is_file()]
    size = sum(path.lstat().st_blocks * 512 for path in files if not path.is_symlink())
    print(f"{size / (1 << 20):.0f} MiB")
    assert size <= INSTALLED_BYTES_MAX
    packages = {path.name for path in installed.folder.glob("lib/python*/site-packages/*")}
    assert {"numba", "llvmlite", "pyarrow", "pyspark", "sqlglot"} & packages == set()
    assert (installed.folder / "share/man/man1/penstock-serve.1").is_file()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_command_shows_its_help(installed: Installed) -> None:
    assert isinstance(root, click.Group)
    for name in root.list_commands(click.Context(root)):
        assert installed.run(name, "--help").startswith(f"Usage: penstock {name}")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_plain_installation_is_a_complete_broker(installed: Installed, tmp_path: Path) -> None:
    run = installed.run
    with installed.broker(tmp_path / "data") as listeners:
        at = ("-b", listeners["kafka"])
        run(*at, "topic", "create", "orders")
        command = [str(installed.folder / "bin/python"), "-c", FOREIGN, listeners["kafka"]]
        found = subprocess.run(
            command, env=installed.environment(), capture_output=True, text=True, check=True,
            timeout=COMMAND_SECONDS_MAX,
        )  # fmt: skip
        assert found.stdout.split() == ["one", "two"]
        assert "readers" in run(*at, "group", "list")
        run(*at, "doctor", "--data-dir", str(tmp_path / "data"))
        refused = subprocess.run(
            installed.words(*at, "consume", "orders", "-e"), env=installed.environment(),
            capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS_MAX,
        )  # fmt: skip
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "pip install 'penstock[client]'" in refused.stderr
        run(*at, "topic", "delete", "orders", "--yes")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_installation_serves_and_uses_a_broker(with_client: Installed, tmp_path: Path) -> None:
    installed = with_client
    run, data = installed.run, tmp_path / "data"
    schema = tmp_path / "order.avsc"
    schema.write_text(SCHEMA)
    with installed.broker(data) as listeners:
        at, registry = ("-b", listeners["kafka"]), ("--registry", listeners["registry"])
        run(*at, "topic", "create", "orders", "-c", "cleanup.policy=compact")
        run(*at, "produce", "orders", "-K", ":", stdin="a:1\nb:2\na:3\n")
        assert run(*at, "consume", "orders", "-e", "-K", ":").split() == ["a:1", "b:2", "a:3"]
        assert '"payload":"2"' in run(*at, "consume", "orders", "-e", "-J").splitlines()[1]
        run(*at, "group", "seek", "readers", "-t", "orders", "--to", "beginning", "--execute")
        assert "readers" in run(*at, "group", "list")
        assert "3" in run(*at, "group", "describe", "readers")
        run("schema", "register", "orders-value", str(schema), *registry)
        assert "orders-value" in run("schema", "list", *registry)
        assert "cleanup.policy" in run(*at, "config", "describe", "topic", "orders")
        run(*at, "cluster", "status")
        run(*at, "doctor", "--data-dir", str(data))
        run(*at, "log", "verify", "orders")
        run(*at, "log", "stats", "orders", "--deep")
        bundle = tmp_path / "support.tar.gz"
        words = ("--output-file", str(bundle), "--data-dir", str(data), "--log", str(schema))
        made = json.loads(run(*at, "support", "bundle", *words, "--output", "json"))
        assert made["missing"] == []
        found = run("upgrade", "check", "--data-dir", str(data), "--output", "json")
        assert json.loads(found)["in_use"] is True
        run(*at, "topic", "delete", "orders", "--yes")
    run("plan", "capacity")
    run("plan", "cost")
    assert "_native" in run("kernels")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_files_of_a_stopped_broker_are_read(with_client: Installed, tmp_path: Path) -> None:
    installed, data = with_client, tmp_path / "data"
    with installed.broker(data) as listeners:
        at = ("-b", listeners["kafka"])
        installed.run(*at, "topic", "create", "orders")
        installed.run(*at, "produce", "orders", "-z", "zstd", stdin="one\ntwo\n")
    assert "orders" in installed.run("log", "dump", "orders", "--data-dir", str(data))
    installed.run("log", "verify", "--data-dir", str(data))
    with installed.broker(data) as listeners:
        words = ("-b", listeners["kafka"], "consume", "orders", "-e")
        assert installed.run(*words).split() == ["one", "two"]
