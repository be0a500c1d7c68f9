"""`ottla completion SHELL`: the script that teaches a shell to complete ottla's commands and options."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    For bash, put this into ~/.bashrc: eval "$(ottla completion bash)"
    """
    from click.shell_completion import get_completion_class

    from ottla.cli.main import root

    found = get_completion_class(shell)
    assert found is not None
    try:
        click.echo(found(root, {}, "ottla", "_OTTLA_COMPLETE").source())
    except RuntimeError as error:  # bash is missing, or too old to be taught
        raise click.ClickException(str(error)) from None
