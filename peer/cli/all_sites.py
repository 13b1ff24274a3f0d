"""``mhfl-peer list``, and ``start`` and ``stop`` with ``--all``: all sites of a home folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from peer.cli import Settings, output, pass_settings, shared_options
from peer.errors import EXIT_CODES, DaemonDown, PeerError, UsageError, one_line
from peer.quantities import duration
from peer.site.config import site_folder
from peer.site.config.site_folder import SiteFolder, make_private

if TYPE_CHECKING:
    from peer.documents.records import ListedSite, SiteOutcome

PROGRAM = (sys.executable, "-P", "-m", "peer.cli")
POLL_S = 0.1
START_S = 60.0
"""A daemon serves within seconds, but checking a large ledger on a slow disk takes longer."""
CONSOLE_FILE = "start.log"
"""In the site's ``logs``: the output of a daemon in the background, which shows why it ended. Its log is daemon.log."""


def home_sites(settings: Settings) -> tuple[SiteFolder, ...]:
    """Return every site of the home folder; raise ``UsageError`` if there is none."""
    home = site_folder.home_folder(settings.home)
    folders = site_folder.sites(home)
    if not folders:
        site_folder.find_site(home)  # raises the error
    return folders


@click.command("list")
@output.json_option
@shared_options
@pass_settings
def list_sites(settings: Settings, as_json: bool) -> None:
    """List every site of this machine: its federation, what it does, its round, since when, and the
    address that others dial.

    \b
    mhfl-peer list
    mhfl-peer list --json
    """
    document = [describe(folder) for folder in home_sites(settings)]
    output.emit(document, as_json=as_json, render=_render_list)


def describe(folder: SiteFolder) -> ListedSite:
    """Describe a site in one row; if a file cannot be read, ``problem`` says why."""
    from peer.cli.watch import read_document
    from peer.site.config.schema import FederationConfig, SiteConfig  # imported here: other commands do not need it

    row: ListedSite = {
        "federation": folder.federation,
        "site": folder.site,
        "daemon": "unreadable",
        "phase": None,
        "round": None,
        "rounds": None,
        "since": None,
        "address": None,
        "problem": "",
    }
    try:
        status = read_document(folder, "status", {})
        site, federation = SiteConfig.load(folder.site_toml), FederationConfig.load(folder.federation_toml)
    except PeerError as error:
        return {**row, "problem": error.message}
    since = None if status["phase_s"] is None else round(time.time() - status["phase_s"], 1)
    return {
        **row,
        "daemon": status["daemon"],
        "phase": status["phase"],
        "round": status["round"],
        "rounds": status["rounds"],
        "since": since,
        "address": federation.addresses.get(folder.site) or status["listen"] or site.listen,
        "problem": status["failure"] or status["departed"],
    }


def _render_list(document: Sequence[ListedSite]) -> output.RenderableType:
    rows = [
        (
            f"{row['federation']}/{row['site']}",
            row["daemon"],
            row["phase"],
            None if row["round"] is None else f"{row['round']}/{row['rounds']}",
            None if row["since"] is None else duration(max(0.0, time.time() - row["since"])),
            row["address"],
            row["problem"] or None,
        )
        for row in document
    ]
    return output.table(("site", "daemon", "phase", "round", "for", "address", "problem"), rows)


# --- start --all ------------------------------------------------------------------------------------------------------
def start_all(
    folders: Sequence[SiteFolder],
    options: Sequence[str] = (),
    *,
    program: Sequence[str] = PROGRAM,
    limit_s: float = START_S,
) -> list[SiteOutcome]:
    """Start the sites' daemons in the background, and wait until each serves or has ended.

    Skip a site that its chain no longer lists as a member, or whose daemon has ended in order after the last round: it
    would serve for a moment and end.
    """
    from peer.site.records.folder_documents import ended_in_order, status_when_down
    from peer.site.records.members import Members

    started: dict[SiteFolder, int] = {}
    outcomes: dict[SiteFolder, SiteOutcome] = {}
    for folder in folders:
        if folder.holder() is not None:
            outcomes[folder] = outcome(folder, "its daemon runs already")
            continue
        try:
            members = Members.read(folder)
            if members is not None and (departed := members.departure(folder.site)):
                outcomes[folder] = outcome(folder, "is not started", problem=departed)
                continue
            status = status_when_down(folder)
            is_over = status["phase"] == "finished" and status["committed"] == status["rounds"]
            if is_over and ended_in_order(folder):
                outcomes[folder] = outcome(folder, "is not started: all rounds are over")
                continue
            started[folder] = _launch(folder, [*program, *_words(folder), *options])
        except (PeerError, OSError) as error:
            code = error.exit_code if isinstance(error, PeerError) else DaemonDown.exit_code
            outcomes[folder] = outcome(folder, "did not start", code, str(error))
    ends_s = time.monotonic() + limit_s
    for folder, pid in started.items():
        outcomes[folder] = _await(folder, pid, ends_s)
    return [outcomes[folder] for folder in folders]


def _words(folder: SiteFolder) -> list[str]:
    return ["--home", str(folder.home), "start", "--site", f"{folder.federation}/{folder.site}", "--quiet"]


def _launch(folder: SiteFolder, command: Sequence[str]) -> int:
    """Spawn a daemon in its own session, so that it outlives this command and its terminal; return its process id."""
    make_private(folder.logs)
    console, write = str(folder.logs / CONSOLE_FILE), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, console, write, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(command[0], list(command), os.environ, file_actions=files, setsid=True)


def _await(folder: SiteFolder, pid: int, ends_s: float) -> SiteOutcome:
    """Wait until the daemon serves, has ended or the time is up; return the outcome."""
    from peer.net.transport.control import ControlClient

    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
        if code == 0:
            return outcome(folder, "its daemon has ended: nothing is left to do")
        if code is not None:
            said = (folder.logs / CONSOLE_FILE).read_text(errors="replace").strip().splitlines()
            problem = one_line(said[-1]).removeprefix("mhfl-peer: ") if said else f"it ended with {code}"
            return outcome(folder, "did not start", code if code in EXIT_CODES else DaemonDown.exit_code, problem)
        try:
            if ControlClient(folder.control_socket()).show("health")["serves"]:
                return outcome(folder, "its daemon serves")
        except PeerError:
            pass
        if time.monotonic() >= ends_s:
            return outcome(folder, "starts", DaemonDown.exit_code, "does not serve yet; see `mhfl-peer list` later")
        time.sleep(POLL_S)


# --- outcomes ---------------------------------------------------------------------------------------------------------
def outcome(folder: SiteFolder, effect: str, exit_code: int = 0, problem: str = "") -> SiteOutcome:
    return {
        "federation": folder.federation,
        "site": folder.site,
        "effect": effect,
        "exit_code": exit_code,
        "problem": problem,
    }


def emit_outcomes(outcomes: Sequence[SiteOutcome], *, as_json: bool) -> None:
    """Print the outcome at each site.

    Raises:
        PeerError: some sites failed; the message names them, and the exit code is that of the first.
    """
    output.emit(list(outcomes), as_json=as_json, render=_render_outcomes)
    failed = [each for each in outcomes if each["exit_code"]]
    if not failed:
        return
    kind: Any = next(kind for kind in PeerError.__subclasses__() if kind.exit_code == failed[0]["exit_code"])
    named = ", ".join(f"{each['federation']}/{each['site']} (exit {each['exit_code']})" for each in failed)
    raise kind(f"{len(failed)} of {len(outcomes)} sites failed: {named}", "see the problem of each above")


def _render_outcomes(document: Sequence[SiteOutcome]) -> output.RenderableType:
    rows = [(f"{each['federation']}/{each['site']}", each["effect"], each["problem"] or None) for each in document]
    return output.table(("site", "effect", "problem"), rows)


def refuse_site(site_name: str | None) -> None:
    """Raise ``UsageError`` if a site is named beside ``--all``."""
    if site_name is not None:
        raise UsageError("--site names one site, --all all of them", "leave one of them out")
