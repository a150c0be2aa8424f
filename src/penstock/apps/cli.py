"""Root of the command line `penstock`: its commands, global options and exit statuses.

A command's module is imported only when the command is called, so that other commands start
quickly. An error is printed as one line on stderr; with `--debug` its traceback is printed instead.

    1  the command failed         2    the command line is invalid
    3  no broker answers          130  interrupted
"""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from penstock import __version__
from penstock.apps.client.session import LazyGroup, State
from penstock.base.errors import PenstockError

_COMMANDS: Final = {
    "serve": ("serve.command", "serve", "Run a broker."),
    "topic": ("log.topics", "topic", "Manage topics: create, list, alter, reassign, delete."),
    "produce": ("log.produce", "produce", "Write records to a topic."),
    "consume": ("log.consume", "consume", "Read records of a topic."),
    "group": ("log.groups", "group", "Manage consumer groups: list, describe, seek, delete."),
    "queue": ("log.queues", "queue", "Inspect share groups, and redrive dead letters."),
    "transaction": ("log.transactions", "transaction", "Inspect and abort transactions."),
    "cluster": (
        "log.cluster",
        "cluster",
        "Show brokers and partitions, and suggest replica moves.",
    ),
    "broker": ("log.replicas", "broker", "Drain and remove brokers."),
    "config": ("log.topics", "config", "Manage settings of topics, groups and brokers."),
    "quota": ("log.quotas", "quota", "Manage quotas of users, client ids and addresses."),
    "acl": ("access", "acl", "Manage access rules: list, add, remove."),
    "tls": ("tls", "tls", "Create, check and reload certificates."),
    "user": ("access", "user", "Manage users and passwords."),
    "log": ("log.command", "log", "Show, check and repair stored batches."),
    "diskless": ("diskless.command", "diskless", "Inspect and rewrite objects of diskless topics."),
    "host": ("host.command", "host", "Run or query the agent for producers of this host."),
    "outbox": (
        "outbox.command",
        "outbox",
        "Write payloads as files, and pointers to them on a topic.",
    ),
    "connect": ("connect.command", "connect", "Run connectors, each defined by a file."),
    "mirror": ("mirror.command", "mirror", "Mirror topics and groups into another cluster."),
    "link": ("link.command", "link", "Follow topics of another cluster, batch for batch."),
    "migrate": (
        "migrate.command",
        "migrate",
        "Move topics, groups and rules from Apache Kafka.",
    ),
    "pipeline": ("pipeline.command", "pipeline", "Run Spark pipelines, each defined by a file."),
    "schema": (
        "schema.command",
        "schema",
        "Manage schemas: register, check, export, import from another registry.",
    ),
    "registry": ("registry.command", "registry", "Serve the schema registry without a broker."),
    "keys": ("keys", "keys", "Manage the keys of encrypted fields."),
    "table": ("tables", "table", "Maintain Delta tables of topics."),
    "plan": ("plan.command", "plan", "Size a cluster, compute its cost, check the host."),
    "kernels": ("cli", "kernels", "Compile the record decoders, once after an installation."),
    "bench": ("bench.command", "bench", "Measure this host, for `penstock plan capacity`."),
    "monitoring": ("monitoring.command", "monitoring", "Write dashboards and alert rules."),
    "upgrade": ("upgrade.command", "upgrade", "Check whether this version reads stored data."),
    "support": ("support.command", "support", "Collect facts for a support request."),
    "completion": ("manual", "completion", "Print a shell's completion script."),
    "man": ("manual", "man", "Write manual pages of all commands."),
    "doctor": ("doctor.command", "doctor", "Find problems, and show how to fix them."),
}

STATUS_FAILED: Final = 1
STATUS_UNREACHABLE: Final = 3
STATUS_INTERRUPTED: Final = 130

_CURES: Final = {
    "broker_not_available": "start a broker with `penstock serve`, or name a running one with -b"
    " HOST:PORT",
    "unknown_topic_or_partition": "list topics with `penstock topic list`, or"
    " create one with `penstock topic create`",
    "group_id_not_found": "list groups with `penstock group list`",
    "offset_out_of_range": "start at an existing offset, with -o beginning or -o end",
    "request_timed_out": "run `penstock doctor` to find the cause",
}


@click.group(
    cls=LazyGroup, entries=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="penstock")
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT,…",
    help="Brokers to connect to first: HOST:PORT, several separated by commas. Default:"
    " 127.0.0.1:9092.",
)
@click.option(
    "--profile",
    help="Section of profiles.toml with defaults of -b, --output and -X (PENSTOCK_PROFILE)."
    " Default: the section default.",
)
@click.option(
    "--output",
    type=click.Choice(("table", "json")),
    help="Format of results: table for people, json for programs (PENSTOCK_OUTPUT). Default:"
    " table.",
)
@click.option("--debug", is_flag=True, help="Print the traceback of an error instead of one line.")
@click.pass_context
def root(
    context: click.Context,
    bootstrap: str | None,
    profile: str | None,
    output: str | None,
    debug: bool,
) -> None:
    """A durable, Kafka-compatible event log.

    An option overrides the environment (PENSTOCK_BOOTSTRAP, PENSTOCK_PROFILE, PENSTOCK_OUTPUT). The
    environment overrides the profile file (~/.config/penstock/profiles.toml, or the file that
    PENSTOCK_PROFILES names). Most commands also accept -b, --profile and --output after their name.
    """
    context.obj = State(bootstrap=bootstrap, profile=profile, output=output, debug=debug)


@click.command()
@click.pass_obj
def kernels(state: State) -> None:
    """Compile the decoders of records and values, and print where their machine code is.

    A platform wheel has the code. Without it, run this command once after an installation, as a
    user who may write into the package's folder. If that folder is read-only, set PENSTOCK_KERNELS
    to a folder that all processes can read. Otherwise the first process of each user compiles the
    decoders, which takes half a minute.
    """
    from penstock.kernels.compiling import compile_all

    click.echo(f"kernels: {compile_all()}")


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    try:
        status = root.main(args=words, prog_name="penstock", standalone_mode=False)
    except click.Abort:
        sys.exit(STATUS_INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(STATUS_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except UnicodeEncodeError as error:
        click.echo(f"penstock: {error.object!r} is not UTF-8", err=True)
        sys.exit(click.UsageError.exit_code)
    except BrokenPipeError:
        _silence_stdout()
        sys.exit(STATUS_FAILED)
    except (PenstockError, OSError, ModuleNotFoundError) as error:
        if "--debug" in words:
            raise
        click.echo(f"penstock: {describe(_named(error))}", err=True)
        unreachable = isinstance(error, PenstockError) and error.code == "broker_not_available"
        sys.exit(STATUS_UNREACHABLE if unreachable else STATUS_FAILED)
    sys.exit(status if isinstance(status, int) else 0)


def _named(error: Exception) -> Exception:
    """Return the error that names the extra of a missing package, or else the same error."""
    if not isinstance(error, ModuleNotFoundError):
        return error
    from penstock.base.extras import missing_extra

    missing = missing_extra(error)
    if missing is None:
        raise error
    return missing


def describe(error: Exception) -> str:
    """Return an error as one line: its message, its notes and a known fix, separated by
    semicolons.
    """
    notes: list[Any] = getattr(error, "__notes__", [])
    code = error.code if isinstance(error, PenstockError) else ""
    fix = getattr(error, "fix", _CURES.get(code, ""))
    words = [str(error) or type(error).__name__, *map(str, notes), fix]
    return "; ".join(filter(None, words)).replace("\n", " ")


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter does not report the closed pipe at
    exit.
    """
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
