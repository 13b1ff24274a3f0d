"""``mhfl-peer completion``: what makes a shell complete commands, options and the names of the sites that live here."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from peer.cli import PROGRAM, shared_options

SHELLS = ("bash", "zsh", "fish")
VARIABLE = f"_{PROGRAM}_COMPLETE".replace("-", "_").upper()
"""What the shell sets when it asks this program how a command line goes on."""


@click.command(short_help="What makes a shell complete commands, options and sites.")
@click.argument("shell", type=click.Choice(SHELLS))
@shared_options
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, files, and the sites of the home folder.

    \b
    mhfl-peer completion bash > ~/.local/share/bash-completion/completions/mhfl-peer
    mhfl-peer completion fish > ~/.config/fish/completions/mhfl-peer.fish
    eval "$(mhfl-peer completion zsh)"
    """
    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(context.find_root().command, {}, PROGRAM, VARIABLE).source())
