"""The root of the command line: the table of commands, and what happens when one fails.

A command is a module of this package with an attribute `command` (a click command or group). It is imported only when it is used,
and the help of the root prints the one-line summaries from the table, so `ottla --help` starts at once whatever the commands need.

Exit codes: 0 done; 1 it failed, said in one sentence on standard error; 2 the command line made no sense; 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

INTERRUPTED = 130

# name on the command line → (module of this package, or module:attribute, and a summary). The order is the order of the help.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up", "Start a cluster on this machine, in the foreground."),
    "demo": ("demo", "Watch it happen: failover, ordering, groups, replay and more."),
    "topics": ("topics", "Create, list, describe, change and delete topics."),
    "produce": ("produce", "Send lines as records."),
    "consume": ("consume", "Print records as lines."),
    "offsets": ("offsets", "Show where partitions begin and end."),
    "groups": ("groups", "Show groups and their lag, reset their offsets, delete them."),
    "transactions": ("transactions", "Show transactions, and end those that hang."),
    "configs": ("configs", "Show and change the settings of topics, brokers and groups."),
    "records": ("records", "Delete records from the beginning of a log."),
    "sql": ("sql", "Ask topics questions in Spark SQL."),
    "pipeline": ("pipeline", "Declare and run pipelines of Spark over topics."),
    "perf": ("perf", "Measure throughput and latency."),
    "brokers": ("cluster:describe", "List the brokers."),
    "quorum": ("cluster:quorum", "Show who keeps the metadata log, and who leads."),
    "partitions": ("partitions", "Move replicas from broker to broker, and elect leaders."),
    "cluster": ("cluster", "Show brokers, the metadata quorum, features and disks."),
    "log": ("log", "Look into the files of a log."),
    "server": ("server", "Run one node from a properties file."),
    "storage": ("storage", "Prepare a node's folders: make a cluster id, format."),
    "completion": ("completion", "Teach your shell to complete these commands."),
}


class LazyGroup(click.Group):
    """The root group. Commands are imported on use; their summaries come from `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"ottla.cli.{module}"), attribute or "command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}{nearest(args[0])}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of a pipe (`head`) has gone, which is its right. What is still buffered goes nowhere, or Python would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table, too: a shell that waits for a Tab must not wait for imports."""
        found = [CompletionItem(name, help=summary) for name, (_, summary) in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def nearest(name: str) -> str:
    import difflib

    found = difflib.get_close_matches(name, COMMANDS, 1)
    return f"; did you mean {found[0]!r}?" if found else ""


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ottla", prog_name="ottla")
def root() -> None:
    """Kafka for Python and Spark people: a log cluster, its clients and its pipelines."""


def fail(sentence: str) -> NoReturn:
    click.echo(f"ottla: {sentence}", err=True)
    sys.exit(1)


def main(arguments: list[str] | None = None) -> None:
    """Run one command line. Failures that a user can cause end in one sentence, never in a traceback."""
    from ottla.model.errors import OttlaError

    try:
        code: Any = root.main(args=arguments, prog_name="ottla", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except OttlaError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
    sys.exit(code if isinstance(code, int) else 0)
