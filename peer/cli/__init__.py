"""The command line: the table of commands, error reports, and the options that all commands share.

This module imports nothing but click. It imports a command's module only when the command is called, so that ``--help``
and ``status`` answer at once. Every other module of this package holds one command, one group, or commands that share
their code.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import click
from click.exceptions import NoArgsIsHelpError
from click.shell_completion import CompletionItem

from peer import __version__
from peer.errors import DiskError, Interrupted, PeerError, UsageError, one_line

PROGRAM = "mhfl-peer"
INTERNAL_ERROR = 1

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("peer.cli.demo:demo", "Run four daemons on this machine with real data, and compare methods in a table."),
    "federation": ("peer.cli.federation:federation", "Found a federation, show it, admit sites."),
    "site": ("peer.cli.site:site", "Enrol this site and configure it: key, bundle, site.toml."),
    "check": ("peer.cli.check:check", "Preflight: say whether this site would run, and if not, why."),
    "list": (
        "peer.cli.all_sites:list_sites",
        "List every site of this machine: phase, round, since when, address.",
    ),
    "start": ("peer.cli.lifecycle:start", "Run this site's daemon in the foreground."),
    "health": ("peer.cli.lifecycle:health", "Say whether the daemon serves its peers, for scripts and containers."),
    "pause": ("peer.cli.lifecycle:pause", "Stop training, but keep serving the peers."),
    "resume": ("peer.cli.lifecycle:resume", "Continue after a pause or a failure."),
    "stop": ("peer.cli.lifecycle:stop", "Write a checkpoint and end the daemon."),
    "leave": ("peer.cli.members:leave", "Leave the federation for good."),
    "backup": ("peer.cli.backup:backup", "Write this site to one file, also while its daemon runs."),
    "restore": ("peer.cli.backup:restore", "Make a site's folder from a backup."),
    "prune": ("peer.cli.prune:prune", "Delete old files of a site that no round needs."),
    "withdraw": (
        "peer.cli.withdraw:withdraw",
        "Say where information about a person may be who withdraws the consent to training.",
    ),
    "overview": (
        "peer.cli.overview:overview",
        "Show every site in one table: round, phase, waits, refusals, certificates.",
    ),
    "dashboard": ("peer.cli.overview:dashboard", "Show all sites of this machine in a browser, on loopback alone."),
    "status": ("peer.cli.watch:status", "Show the current round, what it waits for, and every peer."),
    "rounds": ("peer.cli.watch:rounds", "List the committed rounds: sources, contributors, metrics."),
    "evaluation": ("peer.cli.evaluation:evaluation", "Show this site's model on every site's test data."),
    "statistics": (
        "peer.cli.statistics:statistics",
        "Show what the sites counted together before training, beside this site's own.",
    ),
    "peers": ("peer.cli.watch:peers", "Show the other sites as this one sees them."),
    "transfers": ("peer.cli.watch:transfers", "List every artifact that was received or sent."),
    "egress": ("peer.cli.egress:egress", "List what left this site, verify the ledger, write files for auditors."),
    "evidence": ("peer.cli.evidence:evidence", "Show proofs that a site signed two artifacts for one round."),
    "events": ("peer.cli.watch:events", "Show the journal's newest rows, or why a round went as it did."),
    "scalars": ("peer.cli.scalars:scalars", "Write losses, metrics and traffic for TensorBoard or MLflow."),
    "bugreport": (
        "peer.cli.bugreport:bugreport",
        "Write versions, settings, log tails and findings to one file, without keys and data.",
    ),
    "relay": ("peer.cli.relay:relay", "Join callers to sites that nobody can dial, without reading what they say."),
    "plan": ("peer.cli.plan:plan", "Show who receives from whom in the coming rounds."),
    "simulate": (
        "peer.cli.simulate:simulate",
        "Run an experiment on one machine, with the code that the daemons run.",
    ),
    "report": ("peer.cli.report:report", "Make tables and pictures from the results of `simulate`."),
    "advise": (
        "peer.cli.advise:advise",
        "Say which method suits a federation, and whether joining is likely to pay, by results on like data.",
    ),
    "predict": ("peer.cli.predict:predict", "Use the local model on new images, volumes or signals."),
    "export": ("peer.cli.export:export", "Write the local model as MONAI bundle, .pt2 or ONNX, with a model card."),
    "data": ("peer.cli.data:data", "Inspect, validate and prepare datalists."),
    "methods": ("peer.cli.methods:methods", "List the methods, their stages and parameters."),
    "plugin": ("peer.cli.plugin:plugin", "Begin a package of own methods and networks, or check one."),
    "models": ("peer.cli.models:models", "List the networks, and what each would cost at a task."),
    "help": ("peer.cli.help:show_help", "Show a page of the operator's manual, or the help of a command."),
    "completion": (
        "peer.cli.completion:completion",
        "Print a script that makes a shell complete commands and sites.",
    ),
}
"""Name -> (module:attribute, one line of help), in the order of ``--help``."""

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])
GIVEN_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
GIVEN_PATH = click.Path(path_type=Path, exists=True)
"""Types of input paths: a path that does not exist is a ``UsageError``."""


@dataclass
class Settings:
    """Values of the shared options; ``home`` is ``None`` if the environment decides."""

    home: Path | None = None
    debug: bool = False


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def shared_options(command: AnyCallable) -> AnyCallable:
    """Add ``--home`` and ``--debug``, which may stand before or after a command's name."""

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


def round_option(command: AnyCallable) -> AnyCallable:
    """Add ``--round``, for commands that use a site's model; ``None`` if not given."""
    return click.option(
        "--round",
        "which",
        type=click.Choice(("last", "best")),
        help="The last finished round, or the evaluated one that was best on validation data  [default: last].",
    )(command)


def chosen_round(which: str | None) -> Literal["best"] | None:
    """Return the round for ``peer.train.inference.model_state.open_trained``."""
    return "best" if which == "best" else None


def complete_site(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete sites of the home folder, as ``federation/site`` if a name is ambiguous or the user typed that."""
    from peer.site.config import site_folder

    settings = context.find_object(Settings) or Settings()
    folders = site_folder.sites(site_folder.home_folder(settings.home))
    names = [str(folder.site) for folder in folders]
    offered = {name for name in names if names.count(name) == 1}
    offered |= {f"{folder.federation}/{folder.site}" for folder in folders if incomplete or folder.site not in offered}
    return sorted(name for name in offered if name.startswith(incomplete))


class LazyGroup(click.Group):
    """A click group that imports a command's module only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), COMMANDS[cmd_name][0]
        command.short_help = COMMANDS[cmd_name][1]
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
        """Complete commands, without importing them, and options."""
        items = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line; print an error as one line on stderr and exit with its code."""
        settings = Settings()
        _prepare_output()
        try:
            result = super().main(*args, **{"prog_name": PROGRAM, **extra, "standalone_mode": False, "obj": settings})
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            sys.exit(INTERNAL_ERROR)
        except Exception as error:
            words = extra.get("args") or (args[0] if args else None) or sys.argv[1:]
            sys.exit(_report(error, debug=settings.debug, called=_called_command(self, words)))
        sys.exit(result if isinstance(result, int) else 0)


class _ClosedOutput(io.TextIOBase):
    """An output that the caller has closed."""

    def write(self, text: str, /) -> int:
        raise OSError(errno.EBADF, "the output is closed")


def _prepare_output() -> None:
    """Replace characters that an output cannot encode, and stand in for an output that is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _ClosedOutput())
        elif getattr(stream, "errors", "") == "strict":
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """Redirect stdout to /dev/null: the flush at exit would fail again and change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _called_command(group: click.Group, words: Sequence[str]) -> str:
    """Return the program's name and the command that these words call."""
    path = PROGRAM
    for word in words:
        command = group.get_command(click.Context(group), word)
        if command is not None:
            path += f" {word}"
        if isinstance(command, click.Group):
            group = command
        elif command is not None:
            break
    return path


def _report(error: Exception, *, debug: bool, called: str = PROGRAM) -> int:
    """Write the error to stderr in one line; return its exit code.

    Args:
        called: the called command, for click errors without a context.
    """
    if debug:
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
    if isinstance(error, NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else called
        error = UsageError(error.format_message().rstrip("."), f"see `{path} --help`")
    elif isinstance(error, click.ClickException):
        error = UsageError(error.format_message().rstrip("."))
    elif isinstance(error, click.Abort):
        error = Interrupted("interrupted")
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EBADF):
        error = DiskError(f"{error.filename or 'the output or another file'}: {error.strerror}")
        if not isinstance(sys.stdout, _ClosedOutput):
            _discard_output()
    elif not isinstance(error, PeerError) and _is_interrupted(error):
        error = Interrupted("interrupted")
    if isinstance(error, PeerError):
        text, code = str(error), error.exit_code
    else:
        reason = one_line(f"{type(error).__name__}: {error}")
        text, code = f"internal error: {reason}; run it again with --debug and report the traceback", INTERNAL_ERROR
    with contextlib.suppress(OSError):  # the console may be on a full disk; the exit code still tells
        click.echo(f"{PROGRAM}: {text}", err=True)
    return code


def _is_interrupted(error: BaseException) -> bool:
    """Return whether a Ctrl-C caused the error: pydantic, and Python where a class is made, wrap it into their own."""
    return (
        isinstance(error, KeyboardInterrupt)
        or "KeyboardInterrupt" in str(error)
        or (error.__cause__ is not None and _is_interrupted(error.__cause__))
    )


@click.group(
    PROGRAM, cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__)
@shared_options
@click.pass_context
def main(context: click.Context) -> None:
    """Run a hospital's peer in model-heterogeneous federated learning: no server, no shared data."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
