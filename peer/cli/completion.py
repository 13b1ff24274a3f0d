"""``mhfl-peer completion``: the shell completion script for commands, options and sites."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from peer.cli import PROGRAM, shared_options

SHELLS = ("bash", "zsh", "fish")
VARIABLE = f"_{PROGRAM}_COMPLETE".replace("-", "_").upper()
"""The environment variable that a shell sets to request completions."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@shared_options
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, files, and the sites of the
    home folder.

    \b
    mhfl-peer completion bash > ~/.local/share/bash-completion/completions/mhfl-peer
    mhfl-peer completion fish > ~/.config/fish/completions/mhfl-peer.fish
    eval "$(mhfl-peer completion zsh)"
    """
    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(context.find_root().command, {}, PROGRAM, VARIABLE).source())
