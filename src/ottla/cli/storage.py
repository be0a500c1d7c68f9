"""`ottla storage`: prepare the folders a node writes to."""

from __future__ import annotations

import click


@click.group()
def command() -> None:
    """Prepare a node's folders: make a cluster id, format."""


@command.command("random-uuid")
def random_uuid() -> None:
    """Print a new id, as Kafka writes them: 16 random bytes in URL-safe base64."""
    import base64
    import os

    while True:
        text = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        # Kafka never hands out an id that starts with a dash: on a command line it would read as an option.
        if not text.startswith("-"):
            break
    click.echo(text)
