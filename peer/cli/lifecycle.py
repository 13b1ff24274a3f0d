"""``mhfl-peer start``, ``health``, ``pause``, ``resume`` and ``stop``: a daemon's life cycle."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from peer.cli import all_sites, output
from peer.cli.site_command import SiteCall, site_command
from peer.errors import DaemonDown, LockedError, PeerError, UsageError, WorkerFailed
from peer.site.config.site_folder import SiteFolder

if TYPE_CHECKING:
    from peer.documents.records import SiteOutcome

POLL_S = 0.1
STOP_S = 120.0
"""A daemon takes up to 60 s for its worker's checkpoint, and 22 s for farewells and the worker's end."""


def _complete_absent(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from peer.cli.governance import complete_member  # imported here: only this option needs the chain

    return complete_member(context, parameter, incomplete)


@site_command()
@click.option(
    "--resume",
    type=click.Choice(["auto", "fresh", "require"]),
    default="auto",
    show_default=True,
    help="auto: continue from the journal if there is one; require: fail if there is none; fresh: begin a new "
    "generation and leave the older ones as they are.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="SITE",
    shell_complete=_complete_absent,
    help="Do not wait for this site; may be repeated.",
)
@click.option("--stay", is_flag=True, help="Keep serving after the last round, until `mhfl-peer stop`.")
@click.option("--accept-change", is_flag=True, help="Continue although model, data or training settings changed.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log on standard error; the file daemon.log always has JSON lines.",
)
@click.option("--quiet", is_flag=True, help="Log to the file daemon.log alone.")
@click.option("--all", "everywhere", is_flag=True, help="Start every site of this machine, in the background.")
@click.option("--worker", hidden=True, type=json.loads, help="JSON: the command of the worker, for `demo`.")
def start(
    call: SiteCall,
    resume: str,
    without: tuple[str, ...],
    stay: bool,
    accept_change: bool,
    log_format: str,
    quiet: bool,
    everywhere: bool,
    worker: list[str] | None,
) -> None:
    """Run this site's daemon in the foreground, until the last round is over or an operator stops
    it.

    \b
    mhfl-peer start --site europe
    mhfl-peer start --site europe --resume require
    mhfl-peer start --site europe --without asia
    mhfl-peer start --all

    With --all the daemons run in the background, and the command returns once each serves or has
    ended. Sites whose daemon runs already, or whose rounds are all over, are left alone. Where some
    fail, the message names them, and the exit code is that of the first.
    """
    if everywhere:
        if resume == "fresh" or without or accept_change or log_format != "text" or quiet:
            raise UsageError("--all takes only --resume require, --stay and --json", "start that site by itself")
        all_sites.refuse_site(call.site_name)
        words = [*(("--resume", resume) if resume != "auto" else ()), *(("--stay",) if stay else ())]
        all_sites.emit_outcomes(all_sites.start_all(all_sites.home_sites(call.settings), words), as_json=call.as_json)
        return
    if call.as_json:
        raise UsageError("a daemon in the foreground prints no document", "leave --json out, or add --all")
    from peer.daemon import startup
    from peer.daemon.worker_process import WORKER

    folder = call.folder
    options = startup.Options(
        resume=resume,
        accept_change=accept_change,
        without=without,
        stay=stay,
        debug=call.settings.debug,
        quiet=quiet,
        log_format=log_format,
        worker=worker or WORKER,
    )
    startup.run(folder, options)


@site_command()
@click.option("--training", is_flag=True, help="Also exit 15 if the training has failed and waits for the operator.")
def health(call: SiteCall, training: bool) -> None:
    """Exit 0 while this site's daemon serves its peers; exit 14 while it is down, starts or ends.

    \b
    mhfl-peer health --site europe
    mhfl-peer health --site europe --training
    """
    from peer.net.transport.control import ControlClient

    folder = call.folder
    document = ControlClient(folder.control_socket()).show("health")
    call.emit(document, _render_health)
    if not document["serves"]:
        raise DaemonDown(f"the daemon of {folder.site} runs, but does not serve its peers", "it starts or leaves: wait")
    if training and not document["trains"]:
        raise WorkerFailed(
            f"the training of {folder.site} has failed", "see `mhfl-peer status`, then `mhfl-peer resume`"
        )


def _render_health(document: Any) -> str:
    serves = "serves" if document["serves"] else "does not serve"
    return f"{document['site']}: {serves}" + ("" if document["trains"] else ", but its training has failed")


def _act(folder: SiteFolder, action: str) -> Any:
    from peer.net.transport.control import ControlClient

    try:
        return ControlClient(folder.control_socket()).act(action)
    except DaemonDown as error:
        holder = folder.holder()
        if holder is None:
            raise DaemonDown(f"the daemon of {folder.site} does not run") from error
        reason = f"process {holder} holds {folder.site} and does not answer"
        remedy = "it starts, ends, is busy or is stopped (SIGSTOP): look again, then see its log"
        raise DaemonDown(reason, remedy) from error


def _render_action(document: Any) -> str:
    return f"{document['site']}: {document['effect']}"


@site_command()
def pause(call: SiteCall) -> None:
    """Stop training after the current step, but keep serving; the daemon tells its peers, which do not wait for it.

    \b
    mhfl-peer pause --site europe
    """
    call.emit(_act(call.folder, "pause"), _render_action)


@site_command()
def resume(call: SiteCall) -> None:
    """Continue after a pause, or try again after a failure.

    \b
    mhfl-peer resume --site europe
    """
    call.emit(_act(call.folder, "resume"), _render_action)


@site_command()
@click.option("--wait", is_flag=True, help="Return once the daemon has ended; exit 0 also if none runs.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=STOP_S,
    show_default=True,
    metavar="SECONDS",
    help="With --wait: exit 7 if the daemon runs longer.",
)
@click.option("--all", "everywhere", is_flag=True, help="Stop every site of this machine.")
def stop(call: SiteCall, wait: bool, timeout_s: float, everywhere: bool) -> None:
    """Finish the step, write a checkpoint, tell the peers and end the daemon; `start` continues
    from the checkpoint.

    Without --wait the command returns at once, while the daemon still writes: wait before you copy
    its folder.

    \b
    mhfl-peer stop --site europe
    mhfl-peer stop --site europe --wait
    mhfl-peer stop --all --wait

    With --all, a site without a daemon is no failure. Where some fail, the message names them, and the
    exit code is that of the first; --json then prints a list.
    """
    if everywhere:
        all_sites.refuse_site(call.site_name)
        all_sites.emit_outcomes(
            _stop_all(all_sites.home_sites(call.settings), wait=wait, timeout_s=timeout_s), as_json=call.as_json
        )
        return
    folder = call.folder
    try:
        document = _act(folder, "stop")
    except DaemonDown:
        if not wait or folder.holder() is not None:
            raise
        document = {"site": folder.site, "action": "stop", "effect": "no daemon runs"}
    if wait and document["effect"] != "no daemon runs":
        _wait_for_end(folder, timeout_s)
        document["effect"] = "the daemon has ended"
    call.emit(document, _render_action)


def _stop_all(folders: Sequence[SiteFolder], *, wait: bool, timeout_s: float) -> list[SiteOutcome]:
    """Stop all daemons before waiting for any, so that they write their checkpoints at the same time."""
    outcomes: dict[SiteFolder, SiteOutcome] = {}
    ending: list[SiteFolder] = []
    for folder in folders:
        if folder.holder() is None:
            outcomes[folder] = all_sites.outcome(folder, "no daemon runs")
            continue
        try:
            outcomes[folder] = all_sites.outcome(folder, _act(folder, "stop")["effect"])
            ending.append(folder)
        except PeerError as error:
            outcomes[folder] = all_sites.outcome(folder, "was not stopped", error.exit_code, str(error))
    ends_s = time.monotonic() + timeout_s
    for folder in ending if wait else ():
        try:
            _wait_for_end(folder, max(POLL_S, ends_s - time.monotonic()))
            outcomes[folder] = all_sites.outcome(folder, "the daemon has ended")
        except PeerError as error:
            outcomes[folder] = all_sites.outcome(folder, "still ends", error.exit_code, str(error))
    return [outcomes[folder] for folder in folders]


def _wait_for_end(folder: SiteFolder, timeout_s: float) -> None:
    """Wait until no process holds the folder; raise ``LockedError`` after ``timeout_s``."""
    end_s = time.monotonic() + timeout_s
    with output.working(f"{folder.site}: waiting for the checkpoint and the end of the daemon"):
        while (holder := folder.holder()) is not None:
            if time.monotonic() >= end_s:
                raise LockedError(
                    f"process {holder} still holds {folder.site} after {timeout_s:g} s",
                    f"wait longer, or end it by `kill -KILL {holder}`: the next start goes on from its last checkpoint",
                )
            time.sleep(POLL_S)
