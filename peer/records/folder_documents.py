"""The documents of a site, read from its folder: the running daemon and a reader beside a stopped one say the same."""

from __future__ import annotations

import contextlib
import datetime
import functools
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from peer import errors
from peer.config.site_folder import SiteFolder
from peer.core import site_memory, story
from peer.core.global_test_memory import evaluation_records
from peer.core.limits import REFUSALS_SHOWN_MAX
from peer.core.roster import federation_digest
from peer.core.status import PeerStatus, RefusedEntry, SiteStatus
from peer.records.documents import EvaluationRecord, EventRecord, RoundRecord, TransferRecord
from peer.records.history import History, RecentRounds, journals, recent_rounds
from peer.records.journal import Journal, storage

BULKY = frozenset({"tensors", "spec"})
MANIFEST = ("$.body", "$.signature", "$.certificate_der")
QUIET = frozenset({"ignored", "discarded", "manifest"})
"""Rows that `events` leaves out unless it is asked for all."""
EVENTS_SHOWN = 50
TELLING = ("began", "regenerated", "initialised", "opened", "skipped", "committed", "finished")
"""Rows that say where a site is: the newest of each is enough, and hundreds of rounds need not be gone through."""
HISTORIES = ("rounds", "transfers", "egress")
"""Documents of ``history_document``."""


def document(folder: SiteFolder, what: str, arguments: Mapping[str, Any]) -> Any:
    """One of a site's documents; ``ValueError`` names what there is not."""
    if what in HISTORIES:
        return history_document(history_of(folder, what).read_all(), what)
    with contextlib.ExitStack() as stack:
        read = [stack.enter_context(contextlib.closing(journal)) for journal in journals(folder)]
        if what == "evaluation":
            federation = _federation(folder)
            sites, global_test = federation["sites"], federation["global_test"]
            return evaluation(read, own=folder.site, sites=sites, global_test=global_test)
        if what == "events":
            last, everything = int(arguments.get("last", EVENTS_SHOWN)), bool(arguments.get("everything", False))
            return events(read, last=last, everything=everything)
        if what == "why":
            return why(read, site=folder.site, round=int(arguments["round"]))
    raise ValueError(f"there is no document {what!r}")


def history_of(folder: SiteFolder, what: str) -> History:
    """A history that holds what one of the ``HISTORIES`` needs; nothing is read yet."""
    return History(folder, rounds=what == "rounds", received=what == "transfers", sent=what != "rounds")


def history_document(history: History, what: str) -> list[RoundRecord] | list[TransferRecord]:
    """One of the ``HISTORIES``, as far as the history was read."""
    if what == "rounds":
        return [committed.document() for committed in history.rounds]
    return [transfer.document() for transfer in (history.transfers if what == "transfers" else history.sent)]


def evaluation(
    read: Sequence[Journal], *, own: str, sites: Sequence[str], global_test: bool = True
) -> list[EvaluationRecord]:
    """The site's own model on every site's test split, a record an evaluated round, oldest first."""
    kinds = ("evaluated", "report", "lapsed")
    records = functools.partial(evaluation_records, own=own, sites=sites, global_test=global_test)
    return cast(list[EvaluationRecord], [record for journal in read for record in journal.fold(records, kinds)])


def events(read: Sequence[Journal], *, last: int = EVENTS_SHOWN, everything: bool = False) -> list[EventRecord]:
    """The newest journal rows, oldest first, without tensor lists and manifests.

    Args:
        read: the journals, oldest first.
        last: at most so many.
        everything: also the rows that hardly ever matter.
    """
    shown: list[EventRecord] = []
    for journal in reversed(read):
        quiet = () if everything else QUIET
        rows = journal.records(without=quiet, last=last - len(shown), leave_out=MANIFEST)
        shown = [*(cast(EventRecord, {**row, "body": _slim(row["body"])}) for row in rows), *shown]
    return shown


def why(read: Sequence[Journal], *, site: str, round: int) -> dict[str, Any]:
    """The story of a round, from the newest journal that knows of it; see ``peer.core.story``."""
    told = story.tell([], site=site, round=round)
    for journal in reversed(read):
        if told["state"] != "unknown":
            break
        with storage(journal.path):
            told = story.tell(journal.of_round(round), site=site, round=round)
    return told


def status_when_down(folder: SiteFolder) -> SiteStatus:
    """What the disk knows of a site whose daemon does not run; the keys are those of the running one."""
    federation = _federation(folder)
    with contextlib.ExitStack() as stack:
        read = [stack.enter_context(contextlib.closing(journal)) for journal in journals(folder)]
        journal = next((journal for journal in reversed(read) if not journal.empty()), None)
        return _status(folder, federation, journal)


def _status(folder: SiteFolder, federation: Mapping[str, Any], journal: Journal | None) -> SiteStatus:
    memory, digest, left, last = site_memory.Memory(), federation["digest"], None, None
    refusals: list[RefusedEntry] = []
    if journal is not None:
        with storage(journal.path):
            memory = site_memory.recover(journal.newest(TELLING))
        digest = next((body["federation"] for _, _, body in journal.newest(("configured",))), digest)
        last = RecentRounds(recent_rounds(journal, last=1)).last
        run = journal.records(("began", "left"), last=1)
        left = run[0]["body"] if run and run[0]["kind"] == "left" else None
        refused = journal.records(("began", "refused"), last=REFUSALS_SHOWN_MAX)
        began = max((index for index, row in enumerate(refused) if row["kind"] == "began"), default=-1)
        refusals = [
            {"site": row["body"]["origin"], "round": row["round"], "reason": row["body"]["reason"]}
            for row in refused[began + 1 :]
        ]
    unknown: PeerStatus = {
        "state": "unknown",
        "round": None,
        "phase": None,
        "progress": None,
        "last_seen_s": None,
        "spoken": None,
        "artifact_bytes": None,
        "clock_skew_s": None,
        "address": None,
        "called_s": None,
    }
    return {
        "daemon": "down",
        "site": folder.site,
        "federation": folder.federation,
        "digest": digest,
        "method": federation["method"],
        "generation": memory.generation,
        "phase": "new" if journal is None else "finished" if memory.finished else "down",
        "phase_s": None,
        "round": memory.open.number if memory.open is not None else memory.committed,
        "rounds": federation["rounds"],
        "committed": memory.committed,
        "waiting_for": [],
        "peers": {name: unknown.copy() for name in federation["sites"] if name != folder.site},
        "training": {},
        "samples": memory.samples,
        "refusals": refusals,
        "failure": f"{left['fault']}: {left['reason']}" if left is not None and left["fault"] else "",
        "last_round": last,
        "left_s": None,
        "certificate_days": _certificate_days(folder),
        "transfers": [],
        "listen": "",
        "pid": None,
        "worker_pid": None,
        "started": None,
    }


def sites(folder: SiteFolder) -> list[str]:
    """The names in the site's federation.toml, sorted; without the checks of a start."""
    return list(_federation(folder)["sites"])


def _federation(folder: SiteFolder) -> dict[str, Any]:
    """What `status` shows of the federation, read without the checks of a start, which take longer than the answer."""
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


def _certificate_days(folder: SiteFolder) -> int | None:
    """Whole days that the certificate on disk is valid for; nothing where there is none that can be read."""
    from peer.identity import certificates

    certificate = certificates.readable_certificate(folder.pki)
    return certificates.certificate_days(certificate, datetime.datetime.now(datetime.UTC)) if certificate else None


def _slim(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _slim(value) for key, value in body.items() if key not in BULKY}
    if isinstance(body, list):
        return [_slim(item) for item in body]
    return body
