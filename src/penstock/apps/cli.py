"""`penstock`: the command line. Commands are imported when they are called.

Errors are one line on stderr and a status; `--debug` shows the traceback:

    1  the call failed            2  the command line is wrong
    3  no broker answers          130  interrupted
"""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from penstock import __version__
from penstock.apps.lazy_group import LazyGroup
from penstock.apps.session import State
from penstock.base.errors import PenstockError

_COMMANDS: Final = {
    "serve": ("serve", "serve", "Run a broker."),
    "topic": ("log.topics", "topic", "Manage topics: create, list, alter, reassign, delete."),
    "produce": ("log.produce", "produce", "Write records to a topic."),
    "consume": ("log.consume", "consume", "Read records of a topic."),
    "group": ("log.groups", "group", "Manage consumer groups: list, describe, seek, delete."),
    "queue": ("log.queues", "queue", "Inspect share groups, and redrive dead letters."),
    "transaction": ("log.transactions", "transaction", "Inspect and abort transactions."),
    "cluster": ("log.cluster", "cluster", "Show brokers and partitions, and suggest moves."),
    "broker": ("log.brokers", "broker", "Drain and remove brokers."),
    "config": ("log.configs", "config", "Manage settings of topics, groups and brokers."),
    "quota": ("log.quotas", "quota", "Manage quotas of users, client ids, addresses."),
    "acl": ("access.acls", "acl", "Manage access rules: list, add, remove."),
    "tls": ("tls", "tls", "Create, check and reload certificates."),
    "user": ("access.users", "user", "Manage users and passwords."),
    "log": ("log.command", "log", "Show, check and repair stored batches."),
    "diskless": ("diskless.command", "diskless", "Inspect and rewrite objects of diskless topics."),
    "host": ("host.command", "host", "Run or query the agent for producers of this host."),
    "outbox": ("outbox.command", "outbox", "Keep payloads in files, and pointers on a topic."),
    "pipeline": ("pipeline.command", "pipeline", "Run Spark pipelines, each defined by a file."),
    "keys": ("keys", "keys", "Manage the keys of encrypted fields."),
    "table": ("tables", "table", "Maintain Delta tables of topics."),
    "plan": ("plan.command", "plan", "Size a cluster, compute its cost, check the host."),
    "kernels": ("kernels", "kernels", "Compile the decoders, after an installation."),
    "bench": ("bench.command", "bench", "Measure this host, as input of plans."),
    "doctor": ("doctor.command", "doctor", "Find problems, and show how to fix them."),
}

STATUS_FAILED: Final = 1
STATUS_UNREACHABLE: Final = 3
STATUS_INTERRUPTED: Final = 130

_CURES: Final = {
    "broker_not_available": "start one with `penstock serve`, or name it with -b HOST:PORT",
    "unknown_topic_or_partition": "list topics with `penstock topic list`, or"
    " create one with `penstock topic create`",
    "group_id_not_found": "list groups with `penstock group list`",
    "offset_out_of_range": "use -o beginning or -o end",
    "request_timed_out": "run `penstock doctor` to find the problem",
}


@click.group(
    cls=LazyGroup, entries=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="penstock")
@click.option("-b", "--bootstrap", metavar="HOST:PORT,…", help="Bootstrap servers.")
@click.option("--profile", help="Section of the profile file (PENSTOCK_PROFILE).")
@click.option("--output", type=click.Choice(("table", "json")), help="How results are written.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def root(
    context: click.Context,
    bootstrap: str | None,
    profile: str | None,
    output: str | None,
    debug: bool,
) -> None:
    """A durable, Kafka-compatible event log.

    A flag overrides the environment (PENSTOCK_BOOTSTRAP, PENSTOCK_PROFILE), which overrides the
    profile file (~/.config/penstock/profiles.toml, or PENSTOCK_PROFILES), which overrides the
    default 127.0.0.1:9092.
    """
    context.obj = State(bootstrap=bootstrap, profile=profile, output=output, debug=debug)


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
    except (PenstockError, OSError) as error:
        if "--debug" in words:
            raise
        click.echo(f"penstock: {describe(error)}", err=True)
        unreachable = isinstance(error, PenstockError) and error.code == "broker_not_available"
        sys.exit(STATUS_UNREACHABLE if unreachable else STATUS_FAILED)
    sys.exit(status if isinstance(status, int) else 0)


def describe(error: Exception) -> str:
    """Return an error as one line: message, notes and, if known, the fix."""
    notes: list[Any] = getattr(error, "__notes__", [])
    code = error.code if isinstance(error, PenstockError) else ""
    fix = getattr(error, "fix", _CURES.get(code, ""))
    words = [str(error) or type(error).__name__, *map(str, notes), fix]
    return "; ".join(filter(None, words)).replace("\n", " ")


def _silence_stdout() -> None:
    """Keep the interpreter from complaining about a closed pipe."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
