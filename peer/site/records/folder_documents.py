"""The documents of a site, read from its folder by the daemon or by a command."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from peer import __version__, errors
from peer.core import site_memory
from peer.core.cross_evaluation_memory import evaluation_records
from peer.core.limits import REFUSALS_SHOWN_MAX
from peer.core.roster import federation_digest
from peer.site.config.site_folder import SiteFolder
from peer.site.identity.validity import days_left
from peer.site.records.history import RECENT_ROUNDS, History, RecentRounds, open_journals, recent_rounds
from peer.site.records.journal import Journal, storage
from peer.site.records.trained_people import datalist_change

if TYPE_CHECKING:
    from peer.core.status_document import PeerStatus, RefusedEntry, SiteStatus
    from peer.documents.records import EvaluationRecord, EventRecord, RoundRecord, TransferRecord
    from peer.site.records.members import Members

HIDDEN_KINDS = frozenset({"ignored", "discarded", "manifest"})
"""Kinds of rows that `events` shows only with `--all`."""
OPENINGS = "openings"
"""The key of a row with secrets: those of masks that other sites have opened here."""
EVENTS_SHOWN = 50
STATUS_KINDS = (
    "began", "regenerated", "initialised", "opened", "skipped", "published", "evaluated", "committed", "finished",
)  # fmt: skip
"""Kinds of rows that the status follows from: the newest row of each suffices, however many rounds
there were.
"""
HISTORIES = ("rounds", "transfers", "egress")
"""Documents of ``history_document``."""

UNKNOWN_PEER: PeerStatus = {
    "state": "unknown",
    "round": None,
    "phase": None,
    "progress": None,
    "last_seen_s": None,
    "spoken": None,
    "artifact_bytes": None,
    "clock_skew_s": None,
    "software": None,
    "protocol": None,
    "features": None,
    "address": None,
    "route": None,
    "problem": None,
    "epoch": None,
    "called_s": None,
}
"""A peer of a site whose daemon is down, and whose journal has no artifact of the peer."""
ARRIVALS_PER_PEER = 4
"""Number of newest arrivals that are read, by peer: of two rounds the artifact to train with and that to evaluate."""


def document(folder: SiteFolder, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the document of this name. Raises ``ValueError`` if there is none."""
    if name in HISTORIES:
        return history_document(history_of(folder, name).read_all(), name)
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(contextlib.closing(journal)) for journal in open_journals(folder)]
        if name == "evaluation":
            federation = _read_federation(folder)
            members, global_test = _members(folder), federation["global_test"]
            sites = members.of if members is not None else lambda round: federation["sites"]
            return evaluation(journals, own=folder.site, sites=sites, global_test=global_test)
        if name == "events":
            last, everything = int(arguments.get("last", EVENTS_SHOWN)), bool(arguments.get("everything", False))
            return events(journals, last=last, everything=everything)
        if name == "why":
            return why(journals, site=folder.site, round=int(arguments["round"]))
    raise ValueError(f"there is no document {name!r}")


def history_of(folder: SiteFolder, name: str) -> History:
    """Return a history for one of the ``HISTORIES``, which reads nothing yet."""
    return History(folder, rounds=name == "rounds", received=name == "transfers", sent=name != "rounds")


def history_document(history: History, name: str) -> list[RoundRecord] | list[TransferRecord]:
    """One of the ``HISTORIES``, from the rows that were read so far."""
    if name == "rounds":
        return [committed.document() for committed in history.rounds]
    return [transfer.document() for transfer in (history.transfers if name == "transfers" else history.sent)]


def evaluation(
    journals: Sequence[Journal], *, own: str, sites: Callable[[int], Sequence[str]], global_test: bool = True
) -> list[EvaluationRecord]:
    """Return the own model on every site's test split: a record an evaluated round, oldest first."""
    kinds = ("evaluated", "report", "lapsed")
    records = functools.partial(evaluation_records, own=own, sites=sites, global_test=global_test)
    return cast("list[EvaluationRecord]", [record for journal in journals for record in journal.fold(records, kinds)])


def events(journals: Sequence[Journal], *, last: int = EVENTS_SHOWN, everything: bool = False) -> list[EventRecord]:
    """Return the newest journal rows, oldest first, without specifications of networks, manifests and secrets.

    Args:
        everything: show rows of the ``HIDDEN_KINDS`` too.
    """
    shown: list[EventRecord] = []
    for journal in reversed(journals):
        hidden = () if everything else HIDDEN_KINDS
        rows = journal.records(without=hidden, last=last - len(shown), manifests=False)
        shown = [*(cast("EventRecord", {**row, "body": _for_readers(row["body"])}) for row in rows), *shown]
    return shown


def why(journals: Sequence[Journal], *, site: str, round: int) -> dict[str, Any]:
    """Return the story of a round, from the newest journal that has the round; see ``peer.core.story``."""
    from peer.core import story  # here, since `status` of a site that is down reads the rest of this module, too

    round_story = story.tell([], site=site, round=round)
    for journal in reversed(journals):
        if round_story["state"] != "unknown":
            break
        with storage(journal.path):
            round_story = story.tell(journal.of_round(round), site=site, round=round)
    return round_story


def status_when_down(folder: SiteFolder) -> SiteStatus:
    """Return the status of a site whose daemon is down or does not answer, from its folder.

    The keys are those of a running daemon.
    """
    federation = _read_federation(folder)
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(contextlib.closing(journal)) for journal in open_journals(folder)]
        journal = next((journal for journal in reversed(journals) if not journal.empty()), None)
        return _status(folder, federation, journal)


def newest_row_s(folder: SiteFolder) -> float | None:
    """Return the Unix time of the newest row of a site's journal; ``None`` before the first."""
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(contextlib.closing(journal)) for journal in open_journals(folder)]
        return next((row["time"] for journal in reversed(journals) for row in journal.records(last=1)), None)


def _peers_when_down(journal: Journal | None, names: Sequence[str]) -> dict[str, PeerStatus]:
    """Return the peers as the newest artifacts that arrived of each leave them: their round, and how long ago."""
    peers = {name: UNKNOWN_PEER.copy() for name in names}
    if journal is None:
        return peers
    now_s = datetime.datetime.now(datetime.UTC).timestamp()
    for row in journal.records(("received",), last=ARRIVALS_PER_PEER * len(names), manifests=False):
        if (peer := peers.get(row["body"]["peer"])) is not None:
            peer["round"] = row["round"]
            peer["last_seen_s"] = round(max(0.0, now_s - row["time"]), 1)
    return peers


def ended_in_order(folder: SiteFolder) -> bool:
    """Return whether the newest run of a site's daemon said why it ended: it was not killed, and had no fault."""
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(contextlib.closing(journal)) for journal in open_journals(folder)]
        runs = [run for journal in journals[-1:] for run in journal.records(("began", "left"), last=1)]
    return any(run["kind"] == "left" and not run["body"]["fault"] for run in runs)


def _status(folder: SiteFolder, federation: Mapping[str, Any], journal: Journal | None) -> SiteStatus:
    memory, digest, left, recent = site_memory.Memory(), federation["digest"], None, RecentRounds()
    refusals: list[RefusedEntry] = []
    if journal is not None:
        with storage(journal.path):
            # The newest evaluation may not be the best one, which the fold has to see first.
            memory = site_memory.recover([*journal.best_evaluation(), *journal.newest(STATUS_KINDS)])
        digest = next((body["federation"] for _, _, body in journal.newest(("configured",))), digest)
        recent = RecentRounds(recent_rounds(journal, last=RECENT_ROUNDS))
        run = journal.records(("began", "left"), last=1)
        left = run[0]["body"] if run and run[0]["kind"] == "left" else None
        refused = journal.records(("began", "refused"), last=REFUSALS_SHOWN_MAX)
        began = max((index for index, row in enumerate(refused) if row["kind"] == "began"), default=-1)
        refusals = [
            {
                "site": row["body"]["origin"],
                "round": row["round"],
                "reason": row["body"]["reason"],
                "declined": row["body"].get("declined", False),
            }
            for row in refused[began + 1 :]
        ]
    holder, members = folder.holder(), _members(folder)
    departed = left["reason"] if left is not None and not left["fault"] else ""
    present = federation["sites"] if members is None else members.present()
    peers = [name for name in present if name != folder.site]
    return {
        "daemon": "down" if holder is None else "unresponsive",
        "site": folder.site,
        "federation": folder.federation,
        "digest": digest,
        "method": federation["method"],
        "generation": memory.generation,
        "phase": "new" if journal is None else "finished" if memory.finished else "down",
        "phase_s": None,
        "round": memory.open.number if memory.open is not None else memory.committed,
        "rounds": federation["rounds"] if members is None else members.rounds,
        "committed": memory.committed,
        "waiting_for": [],
        "peers": _peers_when_down(journal, peers),
        "training": {},
        "samples": memory.samples,
        "weights": memory.weights,
        "best_round": site_memory.best_and_newest_round(memory),
        "leak": site_memory.newest_leak(memory),
        "spent": site_memory.newest_spending(memory),
        "refusals": refusals,
        "failure": f"{left['fault']}: {left['reason']}" if left is not None and left["fault"] else "",
        "departed": departed or ("" if members is None else members.departure(folder.site)),
        "last_round": recent.last,
        "contributions": recent.contributions(peers),
        "held": "" if members is None else members.held(folder.site),
        "left_s": None,
        "certificate_days": days_left(folder.pki, datetime.datetime.now(datetime.UTC)),
        "datalist": "" if journal is None else _datalist_change(folder, journal),
        "transfers": [],
        "listen": "",
        "pid": int(holder) if holder is not None and holder.isdecimal() else None,
        "relays": [],
        "relayed": {},
        "worker_pid": None,
        "started": None,
        "software": f"mhfl-peer {__version__}",
    }


def _datalist_change(folder: SiteFolder, journal: Journal) -> str:
    """Return what ``datalist_change`` says; empty where site.toml names no datalist that can be read."""
    try:
        name = tomllib.loads(folder.site_toml.read_text(encoding="utf-8"))["data"]["datalist"]
        return datalist_change(journal, folder.path / name)
    except (OSError, KeyError, TypeError, ValueError):
        return ""


def _members(folder: SiteFolder) -> Members | None:
    """Return the members by the chain of amendments; ``None`` where federation.toml has them."""
    if not folder.membership.exists():
        return None
    from peer.site.records import members  # here, since to import it takes time, and most sites have no chain

    return members.Members.read(folder)


def sites(folder: SiteFolder) -> list[str]:
    """Return the sorted site names in the site's federation.toml, without the checks of a start."""
    return list(_read_federation(folder)["sites"])


def _read_federation(folder: SiteFolder) -> dict[str, Any]:
    """Read the federation's settings that `status` shows.

    Without the checks of a start, which would take too long.
    """
    path = folder.federation_toml
    try:
        draft = tomllib.loads(path.read_text(encoding="utf-8"))
        return {
            "digest": federation_digest(draft),
            "method": draft["method"]["name"],
            "rounds": draft["rounds"],
            "sites": sorted(site["name"] for site in draft["site"]),
            "global_test": bool(draft.get("global_test", False)),
        }
    except OSError as error:
        raise errors.ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise errors.ConfigError(
            f"{path} is not a federation.toml: {error}", "get the founder's federation.toml"
        ) from error


def _for_readers(body: Any) -> Any:
    """Return a row's body without specifications, and of each opening of a secure sum its SHA-256 alone."""
    if isinstance(body, dict):
        return {
            key: {site: _digest(opening) for site, opening in value.items()}
            if key == OPENINGS and isinstance(value, dict)
            else _for_readers(value)
            for key, value in body.items()
            if key != "spec"
        }
    if isinstance(body, list):
        return [_for_readers(item) for item in body]
    return body


def _digest(opening: Any) -> str:
    return hashlib.sha256(json.dumps(opening, sort_keys=True).encode()).hexdigest()
