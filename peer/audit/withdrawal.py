"""Where information about people may be who withdraw their consent: rounds, receivers, files, and ways back.

Nothing here deletes, and no result names a person: the callers know whom they asked about.
"""

from __future__ import annotations

import contextlib
import difflib
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer.cohorts import FOLDER, Cohorts, listed_people, spellings
from peer.documents.privacy import GenerationUse, LocalCopy, SentCopy, TrainingAgain, Withdrawal
from peer.errors import UsageError
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.records.history import CommittedRound, History, Transfer
from peer.site.records.journal import JOURNAL, Journal
from peer.site.records.ledger import OPENING

MAKING = ("initialised", "trained", "aggregated", "evaluated", "adopted")
"""Kinds of rows with artifacts that the site itself made."""
METRICS, EXPORT = "metrics", "export"
FOREVER = float("inf")


@dataclass(slots=True)
class GenerationRecord:
    """What a generation's journal says of the people.

    ``clean`` are the digests of artifacts from before the first stage that may have used them, ``since_s`` is the end
    of that stage, and ``tested_s`` that of the first one with them in the test split; infinite if there was none.
    """

    use: GenerationUse
    clean: set[str] = field(default_factory=set)
    since_s: float = FOREVER
    tested_s: float = FOREVER


class PeopleFinder:
    """Says of the cohorts of one generation whether any of the people is in them."""

    def __init__(self, home: Path, people: Collection[str]) -> None:
        self._cohorts = Cohorts(home)
        self._pseudonyms = {self._cohorts.pseudonym(each): subject for subject in people for each in spellings(subject)}
        self._splits: dict[str | None, frozenset[str] | None] = {None: None}
        self.seen: set[str] = set()
        """The people that some cohort has."""

    def splits(self, cohort: str | None) -> frozenset[str] | None:
        """Return the splits of a cohort in which one of the people is; ``None`` if the cohort is not known."""
        if cohort not in self._splits:
            members = self._cohorts.read(cohort)
            if members is not None:
                present = {split: self._pseudonyms.keys() & digests for split, digests in members.items()}
                self.seen |= {self._pseudonyms[digest] for digests in present.values() for digest in digests}
                self._splits[cohort] = frozenset(split for split, digests in present.items() if digests)
            else:
                self._splits[cohort] = None
        return self._splits[cohort]


def read_generation(folder: SiteFolder, number: int, finder: PeopleFinder) -> GenerationRecord:
    """Read from a generation's journal which rounds used the people, and which artifacts are from before."""
    rounds: dict[str, set[int]] = {"training": set(), "validation": set(), "test": set(), "unknown": set()}
    record = GenerationRecord(
        {"generation": number, "training": [], "validation": [], "test": [], "unknown": [], "first_round": None}
    )
    with contextlib.closing(Journal(folder.generation(number) / JOURNAL, read_only=True)) as journal:
        for row in journal.since(0, MAKING):
            body = row["body"]
            if row["kind"] == "trained":
                splits = finder.splits(body.get("cohort"))
                for split in ("unknown",) if splits is None else splits:
                    rounds[split].add(row["round"])
                if splits is None or "training" in splits:
                    record.since_s = min(record.since_s, row["time"])
                if splits is None or "test" in splits:
                    record.tested_s = min(record.tested_s, row["time"])
            if record.since_s == FOREVER:
                artifacts = (body.get("artifact"), *(body.get("returned") or ()))
                record.clean |= {artifact["sha256"] for artifact in artifacts if artifact is not None}
    record.use.update({split: sorted(numbers) for split, numbers in rounds.items()})  # type: ignore[typeddict-item]
    record.use["first_round"] = min(rounds["training"] | rounds["unknown"], default=None)
    return record


def find_uses(folder: SiteFolder, people: Sequence[str], listed: frozenset[str] | None) -> list[GenerationRecord]:
    """Read all generations; ``UsageError`` names a person that neither they nor the datalist have."""
    records, seen = [], set[str]()
    for number in folder.generations():
        if (folder.generation(number) / JOURNAL).exists():
            finder = PeopleFinder(folder.generation(number), people)
            records.append(read_generation(folder, number, finder))
            seen |= finder.seen
    known = listed or frozenset()
    lost = [each for each in people if each not in seen and known.isdisjoint(spellings(each))]
    if lost and not any(record.use["unknown"] for record in records):
        near = difflib.get_close_matches(lost[0], [person.removeprefix("/") for person in known], n=1)
        raise UsageError(
            f"subject {lost[0]!r} is neither in the datalist nor in a recorded round"
            + (f" (did you mean {near[0]!r}?)" if near else ""),
            "write it as the datalist has it; of a sample without a subject, give its image",
        )
    return records


def withdraw(folder: SiteFolder, people: Sequence[str]) -> Withdrawal:
    """Describe where information about these people may be.

    Args:
        folder: the site's folder; its daemon may run.
        people: subjects as the datalist has or had them; of samples without a subject, their images.

    Raises:
        UsageError: one of them is neither in the datalist nor in any recorded round.
    """
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    listed = listed_people(site.folder / site.data.datalist)
    records = find_uses(folder, people, listed)
    history = History(folder, rounds=True, received=True, sent=True).read_all()
    newest = records[-1].use if records else None
    return {
        "site": folder.site,
        "federation": federation.name,
        "digest": federation.digest,
        "people": len(people),
        "in_datalist": sum(not (listed or frozenset()).isdisjoint(spellings(each)) for each in people),
        "committed": max((each.row.round for each in _newest_rounds(history)), default=0),
        "uses": [record.use for record in records],
        "sent": _sent(history.sent, records),
        "figures_to": _figures_to(history.sent, records),
        "local": list(_local(folder)),
        "again": [] if newest is None else list(_again(folder, history, newest)),
        "letter": None,
    }


def _sent(transfers: Sequence[Transfer], records: Sequence[GenerationRecord]) -> list[SentCopy]:
    """Return what left and is not from before the people: also what no journal names any more."""
    clean = {digest for record in records for digest in record.clean}
    since_s = min((record.since_s for record in records), default=FOREVER)
    copies: dict[tuple[str, int, str], SentCopy] = {}
    for transfer in transfers:
        exported = transfer.purpose == EXPORT
        holds = transfer.time_s >= since_s if exported else transfer.sha256 not in clean
        if transfer.kind in (METRICS, OPENING) or not holds or not transfer.bytes:
            continue
        receiver = EXPORT if exported else transfer.peer
        copy = copies.setdefault(
            (receiver, transfer.round, transfer.sha256),
            {
                "receiver": receiver,
                "round": transfer.round,
                "purpose": transfer.purpose,
                "kind": transfer.kind,
                "sha256": transfer.sha256,
                "bytes": 0,
            },
        )
        copy["bytes"] += transfer.bytes
    return list(copies.values())


def _figures_to(transfers: Sequence[Transfer], records: Sequence[GenerationRecord]) -> list[str]:
    tested_s = min((record.tested_s for record in records), default=FOREVER)
    return sorted({each.peer for each in transfers if each.kind == METRICS and each.time_s >= tested_s})


def _local(folder: SiteFolder) -> Iterator[LocalCopy]:
    """Yield what this program keeps on this machine, and what it cannot know of."""
    prune = f"mhfl-peer prune --site {folder.site} --older-than 0d"
    fresh = f"mhfl-peer start --site {folder.site} --resume fresh, then {prune}"
    newest = max(folder.generations(), default=0)
    for number in folder.generations():
        home = folder.generation(number)
        current = number == newest
        for name, what in (("checkpoints", "weights"), ("artifacts", "sent and received artifacts")):
            yield from _copy(f"{what}, generation {number}", home / name, fresh if current else prune)
        yield from _copy(f"artifacts that no row names, generation {number}", home / "stray", prune)
        yield from _copy(f"prepared images, generation {number}", home / "cache", prune)
        yield from _copy(
            f"keyed digests of the people of each round, generation {number}",
            home / FOLDER,
            f"{_remove(home / FOLDER)}, once this is answered: without them every round counts as unknown",
        )
    yield from _copy("logs, which can name images", folder.logs, prune)
    for former in sorted(folder.path.parent.glob(f"{folder.site}.before-*")):
        yield from _copy("a folder that `restore --force` replaced", former, _remove(former))
    unknown = "files that this program wrote elsewhere and does not keep a list of"
    for what in ("backups", "predictions", "contact sheets", "exports"):
        yield {"what": f"{what}: {unknown}", "path": "", "bytes": 0, "delete": "delete those that you keep"}


def _remove(path: Path) -> str:
    return f"rm -r {shlex.quote(str(path))}"


def _copy(what: str, path: Path, delete: str) -> Iterator[LocalCopy]:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.exists() else 0
    if size:
        yield {"what": what, "path": str(path), "bytes": size, "delete": delete}


def _newest_rounds(history: History) -> list[CommittedRound]:
    return [each for rounds in list(history.rounds_of.values())[-1:] for each in rounds.values()]


def _again(folder: SiteFolder, history: History, use: GenerationUse) -> Iterator[TrainingAgain]:
    """Yield the ways to train again, with the cost of the rounds of the newest generation that they repeat."""
    if use["first_round"] is None:
        return
    rounds = _newest_rounds(history)
    before = [each for each in rounds if each.row.round < use["first_round"]]
    fresh = [f"mhfl-peer start --site {folder.site} --resume fresh", "the same at every receiver of an artifact above"]
    drop = "take the person's samples out of the datalist"
    if before:
        last = before[-1]
        restore = (
            f"mhfl-peer restore --site {folder.site} --force FILE, a backup of round {last.row.round} or earlier; "
            "the same at every receiver of an artifact above"
        )
        yield _cost("from_round", last.row.round, rounds, history, last.time_s, [drop, restore])
    began_s = rounds[0].time_s - rounds[0].row.duration_s if rounds else 0.0
    yield _cost("from_start", 0, rounds, history, began_s, [drop, *fresh])


def _cost(
    way: str,
    number: int,
    rounds: Sequence[CommittedRound],
    history: History,
    since_s: float,
    steps: list[str],
) -> TrainingAgain:
    repeated = [each for each in rounds if each.row.round > number]
    moved = [each.bytes for each in history.transfers if each.time_s >= since_s and each.purpose != EXPORT]
    return {
        "way": way,
        "round": number,
        "rounds": len(repeated),
        "training_s": round(sum(each.row.duration_s for each in repeated), 1),
        "elapsed_s": round(max(0.0, repeated[-1].time_s - since_s), 1) if repeated else 0.0,
        "bytes": sum(moved),
        "steps": steps,
    }


LETTER = """\
To the operators and data protection officers of {receivers}

Federation {federation} (digest {digest}), from site {site}

A person, or several, whose samples site {site} trained on have withdrawn their consent (GDPR
art. 7(3)), and {site} takes their samples out of its training. The persons are not named here: you
need not know them, and hold none of their samples.

The files below were trained with their samples, or from weights that were. Sent files cannot be
recalled, and what a model keeps of one person cannot be taken out of it. Site {site} asks you

1. to delete these files where you still have them, also in folders of former generations and in
   backups (`mhfl-peer prune`);
2. to treat your own models since {first} as derived from them, and to pass this letter on
   to whom you gave those (GDPR art. 19);
3. to say whether you would train again: from a backup of before then, or from the start.

{rows}
"""


def write_letter(document: Withdrawal) -> str:
    """Write the letter to the receivers: rounds and digests alone, and nothing about a person."""
    sent = [copy for copy in document["sent"] if copy["receiver"] != EXPORT]
    rows = [
        f"  round {copy['round']}: {copy['kind']} to {copy['receiver']}\n    sha256 {copy['sha256']}" for copy in sent
    ]
    return LETTER.format(
        **{key: document[key] for key in ("site", "federation", "digest")},
        receivers=", ".join(sorted({copy["receiver"] for copy in sent})) or "the other sites",
        first=f"round {min(copy['round'] for copy in sent)}" if sent else "the start",
        rows="\n".join(rows) or "  No file of this kind has left site " + document["site"] + ".",
    )
