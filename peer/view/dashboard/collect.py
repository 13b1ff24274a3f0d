"""Reads the snapshot of a site: the status from its daemon, all else from its folder."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from peer.core import rows, story
from peer.core.kinds import KINDS
from peer.core.roster import NO_ROUND_KEY
from peer.core.status import plan_of
from peer.core.status_document import SiteStatus
from peer.documents.records import FederationOverview, PlannedRound, RoomTaken, Route
from peer.errors import DaemonDown, PeerError
from peer.net.transport.control import ControlClient
from peer.site.config.rules import make_rules
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates
from peer.site.records import folder_documents
from peer.site.records.history import OPEN, History, Transfer, open_journals
from peer.site.records.journal import storage
from peer.site.records.ledger import OPENING
from peer.site.records.members import epochs_at_rest
from peer.site.records.snapshot import (
    Curve,
    RoundStory,
    SentTotal,
    SiteSnapshot,
    group_refusals,
    overview,
    planned_route,
    room_taken,
)
from peer.view.tracking.scalars import EXPORT, read_runs, stamp

LINK_KINDS = (rows.OpenedRow.kind, rows.ArrivedRow.kind, rows.ChosenRow.kind)
"""Kinds of rows that name the artifacts of a round."""
STORIES = 4
"""Rounds whose story a page tells: the current one and those before it."""
RECEIVED_ROWS = 64
"""The newest received manifests, in which the peers' certificates are looked for."""
READERS_MAX = 8
"""Sites that are read at the same time: most of the time goes by in waiting for daemons."""


@dataclass(frozen=True, slots=True)
class FederationSnapshot:
    """The overview of a federation, and the snapshots of those of its sites that live on this machine."""

    overview: FederationOverview
    sites: tuple[SiteSnapshot, ...]


@dataclass(frozen=True, slots=True)
class _Records:
    """What a page shows of journal and ledger; read again only after they have changed."""

    sent: tuple[Transfer, ...]
    curves: list[Curve]
    folder_bytes: int


class SiteReader:
    """Reads one site again and again.

    Args:
        records: also read the ledger's totals, the curves and the stories.
    """

    def __init__(self, folder: SiteFolder, *, records: bool = True) -> None:
        self.folder = folder
        self._with_records = records
        self._stamp: Any = None
        self._records = _Records((), [], 0)

    def read(self) -> SiteSnapshot:
        """Read the snapshot now. Raises ``PeerError`` if the site's files cannot be read."""
        status = self._read_status()
        plan, artifact = self._read_plan(status)
        if self._with_records and (changed := stamp(self.folder)) != self._stamp:
            self._records, self._stamp = self._read_records(), changed
        links, stories, days = self._read_journal(status, plan, artifact)
        return {
            "status": status,
            "plan": plan,
            "artifact": artifact,
            "links": links,
            "certificates": days,
            "refusals": group_refusals(status),
            "sent": sent_totals(self._records.sent),
            "curves": self._records.curves,
            "stories": stories,
            "room": self._read_room(),
            "folder_bytes": self._records.folder_bytes,
            "free_bytes": _free_bytes(self.folder),
        }

    def _read_status(self) -> SiteStatus:
        try:
            socket = self.folder.control_socket()
            if socket.exists():
                status: SiteStatus = ControlClient(socket).show("status")
                return status
        except DaemonDown:
            pass
        return folder_documents.status_when_down(self.folder)

    def _read_plan(self, status: SiteStatus) -> tuple[list[PlannedRound], str | None]:
        """Read the current round's plan and the one before, and the kind of artifact; no plan without the round key."""
        federation = FederationConfig.load(self.folder.federation_toml)
        try:
            round_key = certificates.read_round_key(self.folder.pki / certificates.ROUND_KEY_FILE)
        except (PeerError, ValueError):
            round_key = None
        rules = make_rules(federation, self.folder.site, round_key or NO_ROUND_KEY, without=frozenset(), stay=False)
        rules = rules.amended(epochs_at_rest(self.folder, federation, round_key))
        try:
            plan = plan_of(rules, rounds=2, first=max(1, status["round"] - 1))
        except ValueError:  # this site does not have the key of these rounds
            return [], federation.plan.artifact
        return plan["rounds"], plan["artifact"]

    def _read_room(self) -> RoomTaken | None:
        """Read the share of the room, where site.toml has ``[reference]`` and a round was evaluated by its metric."""
        try:
            reference = SiteConfig.load(self.folder.site_toml).reference
        except PeerError:  # `check` says what is wrong with site.toml
            return None
        if reference is None:
            return None
        with contextlib.ExitStack() as stack:
            for journal in [stack.enter_context(contextlib.closing(each)) for each in open_journals(self.folder)][::-1]:
                for _, round, body in journal.newest((rows.EvaluatedRow.kind,)):
                    if (value := body["metrics"].get(reference.metric)) is not None:
                        return room_taken(**reference.model_dump(), round=round, value=value)
        return None

    def _read_records(self) -> _Records:
        history = History(self.folder, sent=True).read_all()
        runs = read_runs(self.folder)
        points: dict[str, list[tuple[int, float]]] = {}
        for scalar in runs[-1].scalars if runs else ():
            points.setdefault(scalar.tag, []).append((scalar.step, scalar.value))
        curves: list[Curve] = [{"tag": tag, "points": sorted(pairs)} for tag, pairs in sorted(points.items())]
        return _Records(tuple(history.sent), curves, _folder_bytes(self.folder))

    def _read_journal(
        self, status: SiteStatus, plan: Sequence[PlannedRound], artifact: str | None
    ) -> tuple[list[Route], list[RoundStory], dict[str, int]]:
        """Read this site's routes, the stories of the newest rounds, and the days left of peers' certificates."""
        links: list[Route] = []
        stories: list[RoundStory] = []
        days: dict[str, int] = {}
        with contextlib.ExitStack() as stack:
            journals = [stack.enter_context(contextlib.closing(journal)) for journal in open_journals(self.folder)]
            for journal in journals[-1:]:
                received = journal.records(("received",), last=RECEIVED_ROWS)
                days = peer_certificate_days(received, datetime.datetime.now(datetime.UTC))
                for number in range(status["round"], max(0, status["round"] - STORIES), -1):
                    with storage(journal.path):
                        records = journal.of_round(number)
                    planned = next((each for each in plan if each["round"] == number), None)
                    if planned is not None:
                        links += round_links(status, planned, artifact or "", records, self._records.sent)
                    if self._with_records:
                        round_story = story.tell(records, site=self.folder.site, round=number)
                        sentences = [(sentence["time"], sentence["text"]) for sentence in round_story["story"]]
                        stories.append({"round": number, "state": round_story["state"], "sentences": sentences})
        return links, [round_story for round_story in stories if round_story["sentences"]], days


class FederationReader:
    """Reads all these sites again and again, which may be of several federations."""

    def __init__(self, folders: Sequence[SiteFolder], *, records: bool = True) -> None:
        self._readers = [SiteReader(folder, records=records) for folder in folders]

    def read(self) -> list[FederationSnapshot]:
        """Read one snapshot for each federation, by name. Raises ``PeerError`` if no site of one can be read."""
        by_federation: dict[str, list[SiteReader]] = {}
        for reader in self._readers:
            by_federation.setdefault(reader.folder.federation, []).append(reader)
        return [_read_federation(readers) for _, readers in sorted(by_federation.items())]


def _read_federation(readers: Sequence[SiteReader]) -> FederationSnapshot:
    snapshots: list[SiteSnapshot] = []
    problems: dict[str, PeerError] = {}
    with ThreadPoolExecutor(min(READERS_MAX, len(readers))) as pool:
        for reader, snapshot in zip(readers, pool.map(_read_or_fail, readers), strict=True):
            if isinstance(snapshot, PeerError):
                problems[reader.folder.site] = snapshot
            else:
                snapshots.append(snapshot)
    if not snapshots:
        raise next(iter(problems.values()))
    texts = {site: str(problem) for site, problem in problems.items()}
    return FederationSnapshot(overview(snapshots, time_s=time.time(), problems=texts), tuple(snapshots))


def _read_or_fail(reader: SiteReader) -> SiteSnapshot | PeerError:
    try:
        return reader.read()
    except PeerError as error:
        return error


def sent_totals(sent: Sequence[Transfer]) -> list[SentTotal]:
    """Return the sent bytes by receiver, kind and purpose. An open or unknown transfer counts in full."""
    totals: dict[tuple[str, str, str], SentTotal] = {}
    for transfer in sent:
        key = transfer.peer, transfer.kind, transfer.purpose
        if key not in totals:
            totals[key] = {
                "receiver": transfer.peer,
                "kind": transfer.kind,
                "purpose": transfer.purpose,
                "transfers": 0,
                "complete": 0,
                "bytes": 0,
                "last": 0.0,
            }
        total = totals[key]
        total["transfers"] += 1
        total["complete"] += transfer.outcome == "complete"
        total["bytes"] += transfer.bytes
        total["last"] = max(total["last"], transfer.time_s)
    return [totals[key] for key in sorted(totals)]


def round_links(
    status: SiteStatus,
    planned: PlannedRound,
    artifact: str,
    records: Sequence[Mapping[str, Any]],
    sent: Sequence[Transfer],
) -> list[Route]:
    """Return the state of each transfer of one round, as far as the site knows it.

    Args:
        planned: the round's plan.
        artifact: the method's kind of artifact.
        records: the journal's rows of the round.
        sent: the transfers of the ledger.
    """
    own, number = status["site"], planned["round"]
    links = {
        (sender, own, artifact): planned_route(number, sender, own, artifact)
        for sender in planned["receives_from"].get(own, ())
    }
    if number == status["round"]:
        for wait in status["waiting_for"]:
            if wait["kind"] in KINDS:
                links[(wait["site"], own, wait["kind"])] = {
                    **planned_route(number, wait["site"], own, wait["kind"]),
                    "state": "waiting",
                }
    links.update(_journal_links(own, number, artifact, records))
    for transfer in sent:
        ours = transfer.round == number and transfer.generation == status["generation"]
        if ours and transfer.purpose != EXPORT and transfer.kind != OPENING and transfer.outcome in ("complete", OPEN):
            links[(own, transfer.peer, transfer.kind)] = {
                **planned_route(number, own, transfer.peer, transfer.kind),
                "state": "arrived" if transfer.outcome == "complete" else "moving",
                "bytes": transfer.bytes,
            }
    for moving in status["transfers"]:
        if moving["round"] == number and moving["direction"] == "in":
            links[(moving["peer"], own, moving["kind"])] = {
                **planned_route(number, moving["peer"], own, moving["kind"]),
                "state": "moving",
                "bytes": moving["bytes"],
                "share": moving.get("received", 0) / max(moving["bytes"], 1),
            }
    return list(links.values())


def _journal_links(
    own: str, number: int, artifact: str, records: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[tuple[str, str, str], Route]]:
    """Return what arrived in a round, and what the site went on without."""
    for record in records:
        if record["round"] != number or record["kind"] not in LINK_KINDS:
            continue
        row: Any = rows.decode(record["kind"], record["round"], record["body"])
        # An artifact may have arrived in the round before: then only the row that uses it is of this round.
        for source in (row.source,) if isinstance(row, rows.ArrivedRow) else row.sources:
            if source.origin != own and not source.fallback:
                sender, kind = source.origin, source.artifact.kind
                route = planned_route(number, sender, own, kind)
                yield (sender, own, kind), {**route, "state": "arrived", "bytes": source.artifact.bytes}
        if isinstance(row, rows.ChosenRow):
            missing_kind = "return" if row.purpose == "return" else artifact
            for peer, reason in row.missing.items():
                route = planned_route(number, peer, own, missing_kind)
                yield (
                    (peer, own, missing_kind),
                    {**route, "state": "missing", "reason": story.MISSING.get(reason, reason)},
                )


def peer_certificate_days(received: Sequence[Mapping[str, Any]], now: datetime.datetime) -> dict[str, int]:
    """Return the days left of the certificate with which each peer signed last."""
    newest = {row["body"]["peer"]: row["body"].get("certificate_der") for row in received}
    days = {}
    for peer, encoded in newest.items():
        with contextlib.suppress(ValueError, TypeError, binascii.Error):
            certificate = x509.load_der_x509_certificate(base64.b64decode(encoded, validate=True))
            days[peer] = certificates.certificate_days(certificate, now)
    return days


def _folder_bytes(folder: SiteFolder) -> int:
    total = 0
    for parent, _, names in os.walk(folder.path):
        for name in names:
            with contextlib.suppress(OSError):  # the daemon may delete a file meanwhile
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _free_bytes(folder: SiteFolder) -> int:
    disk = os.statvfs(folder.path)
    return disk.f_bavail * disk.f_frsize
