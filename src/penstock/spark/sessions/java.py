"""Launcher of Spark's Java process, which hides warnings of normal runs and archives classes.

Some warnings of Java and Spark's first log lines cannot be switched off. The process therefore
writes its stderr to a pipe, and a thread forwards all lines except those in `USUAL`.

Before a query's first batch Spark loads and verifies some 20,000 classes, which takes half of a
session's start time. Java can write these classes to a class data sharing archive when a process
ends, and map the archive in later processes. An archive is valid only for one Java and one set of
jars, so its name is a digest of both:

    <folder>/<digest of Java and Spark's jars, 16 digits>.jsa

The folder is PENSTOCK_JAVA_CLASSES. By default it is `__pycache__/java` of this package or, if the
package is read-only, ~/.cache/penstock/java (XDG_CACHE_HOME). `penstock pipeline prepare` runs a
pipeline once to write the archive.

Source: "Class Data Sharing" in the manual of the `java` command, JEP 350.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from penstock.base.errors import UnavailableError
from penstock.base.files import can_write, folders

# Spark home with an unpacked Python library, so that Spark's Python processes start faster.
#
# Spark starts a Python process for each stream, with `python/lib/pyspark.zip` of its home first on
# the module path. Python does not cache compiled modules of a zip archive and compiles them at each
# start, for about a second. In this home, `pyspark.zip` is a directory that links to the installed
# package, and all other entries are links:
#
#     <folder>/<digest of the installed home, 16 digits>/
#         jars, bin, …                     -> the installed ones
#         python/lib/pyspark.zip/pyspark   -> the installed package
#
# PENSTOCK_SPARK_HOMES sets the folder. Otherwise it is `__pycache__/spark` of this package or, if
# the package is read-only, ~/.cache/penstock/spark (XDG_CACHE_HOME). A home that SPARK_HOME names
# is used unchanged.


HOMES_VARIABLE: Final = "PENSTOCK_SPARK_HOMES"
HOME_VARIABLE: Final = "SPARK_HOME"
_ARCHIVE: Final = "pyspark.zip"
_LINKED: Final = ("bin", "conf", "data", "jars", "licenses", "sbin")


def spark_home() -> Path:
    """Return a Spark home in which Spark's Python processes start faster; create it if missing.

    Its Python library is an unpacked directory, for which Python caches compiled modules.

    Returns:
        The installed home if SPARK_HOME is set, if Spark is not installed as a Python package, or
            if no folder is writable.
    """
    installed = Path(_find_spark_home())
    package = Path(pyspark.__file__).parent
    if HOME_VARIABLE in os.environ or installed != package:
        return installed
    return _unpacked(package) or installed


@lru_cache(maxsize=1)
def _unpacked(package: Path) -> Path | None:
    name = hashlib.sha256(f"{package} {pyspark.__version__}".encode()).hexdigest()[:16]
    candidates = [
        folder / name for folder in folders(HOMES_VARIABLE, Path(__file__).parent, "spark")
    ]
    found = next((place for place in candidates if place.exists()), None)
    if found is not None:
        return found
    place = next((place for place in candidates if can_write(place.parent)), None)
    if place is None:
        return None
    made = Path(mkdtemp(dir=place.parent))
    for name in _LINKED:
        if (package / name).exists():
            (made / name).symlink_to(package / name)
    library = made / "python" / "lib"
    (library / _ARCHIVE).mkdir(parents=True)
    (library / _ARCHIVE / package.name).symlink_to(package)
    for archive in (package / "python" / "lib").iterdir():
        if archive.name != _ARCHIVE:
            (library / archive.name).symlink_to(archive)
    try:
        made.rename(place)
    except OSError:  # another process created it first
        shutil.rmtree(made)
    return place


STDERR: Final = 2
CLASSES_VARIABLE: Final = "PENSTOCK_JAVA_CLASSES"
_OWN: Final = ("-Xshare", "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit")
_SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Options that suppress Java's warning for each class that it cannot archive."""
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_FIRST_OPTIONS: Final = "spark.driver.defaultJavaOptions"
"""Setting whose options Java gets before those of `_OPTIONS`, so that the user's options win."""
COMPILING: Final = (
    "-XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000"
    " -XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=1600000"
)
"""Thresholds of calls for Java's optimising compiler (C2), forty times the defaults.

Methods that run once per row still reach them within a second. Code that plans and starts queries
does not; compiling it would take more processor time than a batch of a million rows. A pipeline of
two million rows takes a tenth less time than with ten times the defaults.
"""
SERIAL: Final = "-XX:+UseSerialGC"
"""Collector of small sessions.

A pipeline of two million rows takes a tenth less processor time than with Java's default, G1, which
does more work at each write of a reference.
"""
_SERIAL_SLOTS_MAX: Final = 4
_OPTION_FILES: Final = ("spark-defaults.conf", "java-opts")
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_OPTION_VARIABLES: Final = (
    "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)  # fmt: skip
USUAL: Final = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"Using Spark's default log4j profile: ",
    b'Setting default log level to "',
    b"To adjust logging level use sc.setLogLevel(",
    b" WARN NativeCodeLoader: Unable to load native-hadoop library ",
    b" WARN Utils: Your hostname, ",
    b" WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address",
    b" WARN ResolveWriteToStream: spark.sql.adaptive.enabled is not supported in streaming ",
)
"""Parts of the stderr lines that every normal run prints; such lines are dropped."""


class JavaMissing(UnavailableError):
    """Missing Java runtime, which Spark needs."""


def require_java() -> None:
    """Check that a Java runtime is installed.

    Raises:
        JavaMissing: there is no `java` on the path, and JAVA_HOME has none.
    """
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and os.access(os.path.join(home, "bin", "java"), os.X_OK)):
        return
    raise JavaMissing(
        "no `java` is on the path, but Spark needs a Java runtime of version 17 or newer. Install "
        "one (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    )


def start(settings: Mapping[str, Any], *, slots: int | None = None) -> None:
    """Start Spark's Java process with these settings; the next session uses it.

    Args:
        slots: number of tasks that run in the process at once; None if they run elsewhere.
    """
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, _text(value))
    own = _text(settings.get(_OPTIONS, ""))
    conf.setIfMissing(_FIRST_OPTIONS, first_options(own, slots))
    if options := with_archive(own):
        conf.set(_OPTIONS, options)
    reading, writing = os.pipe()
    relay = threading.Thread(target=_relay, args=(reading,), name="spark-stderr", daemon=True)
    relay.start()
    try:
        gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


def first_options(options: str, slots: int | None) -> str:
    """Return the options that Java gets before the user's.

    They name no collector if the user's do, because Java does not start with two.
    """
    if slots is None or slots > _SERIAL_SLOTS_MAX:
        return COMPILING
    folder = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")
    files = [folder / name for name in _OPTION_FILES]
    texts = [options, *(os.environ.get(name, "") for name in _OPTION_VARIABLES)]
    texts += [file.read_text(errors="replace") for file in files if file.is_file()]
    chosen = any(_COLLECTOR.search(text) for text in texts)
    return COMPILING if chosen else f"{COMPILING} {SERIAL}"


def stop_accumulators() -> None:
    """Stop PySpark's server of accumulators in the background, before the session is stopped.

    The server stops after up to a second, for which PySpark would wait.
    """
    context: Any = SparkContext._active_spark_context
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        context._accumulatorServer = None
        if isinstance(server.server_address, str):  # a file, which stays if the process exits first
            Path(server.server_address).unlink(missing_ok=True)
        threading.Thread(target=server.shutdown, name="accumulators", daemon=True).start()


def end(seconds: float) -> None:
    """Stop the Java process, and wait until it has ended.

    Raises:
        subprocess.TimeoutExpired: the process did not end within `seconds`.
    """
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # makes the process exit
        gateway.proc.wait(seconds)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _relay(descriptor: int) -> None:
    with open(descriptor, "rb") as lines:
        for line in lines:
            if not any(part in line for part in USUAL):
                os.write(STDERR, line)


def with_archive(options: str) -> str:
    """Return Java's options with the class archive, if there is one and they name no other."""
    found = next((path for path in _candidates() if path.exists()), None)
    if found is None or any(own in options for own in _OWN):
        return options
    return f"-XX:SharedArchiveFile={found} {options}".strip()


def writing(path: Path) -> str:
    """Return the Java options that make a process write its classes to this file when it ends."""
    return f"-XX:ArchiveClassesAtExit={path} {_SILENT}"


def destination() -> Path:
    """Return the path for a new archive of this Java and this Spark.

    Raises:
        OSError: no folder is writable.
    """
    candidates = _candidates()
    place = next((path for path in candidates if can_write(path.parent)), candidates[-1])
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _candidates() -> list[Path]:
    found = folders(CLASSES_VARIABLE, Path(__file__).parent, "java")
    return [folder / f"{_classes()}.jsa" for folder in found]


@lru_cache(maxsize=1)
def _classes() -> str:
    """Return the digest that names the archive of this Java and these jars."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java") or "java"
    jars = spark_home() / "jars"
    digest = hashlib.sha256()
    for path in (Path(os.path.realpath(java)), *sorted(jars.glob("*.jar"))):
        facts = path.stat() if path.exists() else None
        digest.update(repr((str(path), facts and (facts.st_size, facts.st_mtime_ns))).encode())
    return digest.hexdigest()[:16]
