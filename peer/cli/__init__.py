"""The command line: what exists, what an error looks like, and the two options that every command shares.

Nothing but click is imported here; a command's module is imported when the command runs, so that ``--help`` and
``status`` answer at once. Modules of this package hold one command, or one group, each.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.exceptions import NoArgsIsHelpError
from click.shell_completion import CompletionItem

from peer.errors import Interrupted, PeerError, UsageError, one_line

PROGRAM = "mhfl-peer"
INTERNAL_ERROR = 1

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("peer.cli.demo:demo", "Four real daemons on loopback with real data, one table at the end."),
    "federation": ("peer.cli.federation:federation", "Found a federation, show it, admit sites."),
    "site": ("peer.cli.site:site", "Enrol this site: make its key, join with the founder's bundle."),
    "check": ("peer.cli.check:check", "Preflight: say whether this site would run, and if not, why."),
    "start": ("peer.cli.lifecycle:start", "Run this site's daemon in the foreground."),
    "health": ("peer.cli.lifecycle:health", "Whether the daemon serves, for scripts and containers."),
    "pause": ("peer.cli.lifecycle:pause", "Stop training, go on serving."),
    "resume": ("peer.cli.lifecycle:resume", "Go on after a pause."),
    "stop": ("peer.cli.lifecycle:stop", "Finish the step, checkpoint, leave cleanly."),
    "status": ("peer.cli.watch:status", "Where the round is, what it waits for, who is there."),
    "rounds": ("peer.cli.watch:rounds", "Every round so far: sources, contributors, metrics."),
    "evaluation": ("peer.cli.evaluation:evaluation", "This site's model on every site's test data."),
    "peers": ("peer.cli.watch:peers", "The other sites as this one sees them."),
    "transfers": ("peer.cli.watch:transfers", "Every artifact that came or went."),
    "egress": ("peer.cli.egress:egress", "Every byte that left, to whom, when; proofs and files for auditors."),
    "events": ("peer.cli.watch:events", "The journal, line by line."),
    "scalars": ("peer.cli.scalars:scalars", "Losses, metrics and traffic of every round for TensorBoard or MLflow."),
    "plan": ("peer.cli.plan:plan", "Who receives from whom in the coming rounds."),
    "simulate": ("peer.cli.simulate:simulate", "Many federations on one machine, with the code that the daemons run."),
    "report": ("peer.cli.report:report", "Tables and pictures from what `simulate` left."),
    "predict": ("peer.cli.predict:predict", "Use the local model on new images, volumes or signals."),
    "export": ("peer.cli.export:export", "Take the local model away: MONAI bundle, .pt2 or ONNX, with a model card."),
    "data": ("peer.cli.data:data", "Inspect, validate and prepare datalists."),
    "methods": ("peer.cli.methods:methods", "The methods, their stages and parameters."),
    "models": ("peer.cli.models:models", "The networks that there are, and what each would cost."),
    "help": ("peer.cli.help:show_help", "The operator's pages, and the help of any command."),
    "completion": ("peer.cli.completion:completion", "What makes a shell complete commands, options and sites."),
}
"""Name -> (module:attribute, one line of help), in the order in which ``--help`` lists them."""

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


@dataclass
class Settings:
    """What the shared options said; ``site_folder`` is ``None`` when it is left to the environment."""

    home: Path | None = None
    debug: bool = False


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def shared_options(command: AnyCallable) -> AnyCallable:
    """``--home`` and ``--debug``, which may stand before or after a command's name."""

    def remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value and parameter.name is not None:
            setattr(context.ensure_object(Settings), parameter.name, value)

    home = click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        expose_value=False,
        callback=remember,
        help="The state folder [default: $MHFL_HOME, $XDG_STATE_HOME/mhfl or ~/.local/share/mhfl].",
    )
    debug = click.option(
        "--debug", is_flag=True, expose_value=False, callback=remember, help="Show the traceback of an error."
    )
    return home(debug(command))


def site_option(command: AnyCallable) -> AnyCallable:
    """``--site``, for commands about one site that lives here; ``peer.config.site_folder.find_site`` reads it."""
    return click.option(
        "--site",
        "site_name",
        metavar="NAME",
        shell_complete=_sites_here,
        help="The site, or federation/site; may be left out if only one is here.",
    )(command)


def _sites_here(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """For a shell that completes ``--site``: the sites of the home folder, with the federation where that is needed."""
    from peer.config import site_folder

    settings = context.find_object(Settings) or Settings()
    folders = site_folder.sites(site_folder.home_folder(settings.home))
    names = [str(folder.site) for folder in folders]
    every = {name for name in names if names.count(name) == 1}
    every |= {
        f"{folder.federation}/{folder.site}" for folder in folders if "/" in incomplete or folder.site not in every
    }
    return sorted(name for name in every if name.startswith(incomplete))


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for, and not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; nothing when the table does not have it."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), COMMANDS[cmd_name][0]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            guess = get_close_matches(args[0], COMMANDS, n=1)
            raise click.UsageError(f"no command {args[0]!r}{f' (did you mean {guess[0]!r}?)' if guess else ''}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a shell may complete here: the table's names, without importing any, and options."""
        named = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line to its end: an error is one line on stderr and a numbered exit code."""
        settings = Settings()
        try:
            result = super().main(*args, **{"prog_name": PROGRAM, **extra, "standalone_mode": False, "obj": settings})
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit is quiet too
            sys.exit(INTERNAL_ERROR)
        except Exception as error:
            sys.exit(_report(error, debug=settings.debug))
        sys.exit(result if isinstance(result, int) else 0)


def _report(error: Exception, *, debug: bool) -> int:
    """Tell stderr what happened, in one line; the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else PROGRAM
        error = UsageError(error.format_message().rstrip("."), f"see `{path} --help`")
    elif isinstance(error, click.ClickException):
        error = UsageError(error.format_message().rstrip("."))
    elif isinstance(error, click.Abort):
        error = Interrupted("interrupted")
    if isinstance(error, PeerError):
        click.echo(f"{PROGRAM}: {error}", err=True)
        return error.exit_code
    reason = one_line(f"{type(error).__name__}: {error}")
    click.echo(f"{PROGRAM}: internal error: {reason}; run it again with --debug and report the traceback", err=True)
    return INTERNAL_ERROR


@click.group(
    PROGRAM, cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="mhfl-peer")
@shared_options
@click.pass_context
def main(context: click.Context) -> None:
    """A hospital's peer in model-heterogeneous federated learning: no server, no shared data, nothing but peers."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
