"""The documents of `withdraw` and `prune`; neither names a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict


class GenerationUse(TypedDict):
    """The rounds of one generation in which samples of the people were used."""

    generation: Annotated[int, "number of the generation's folder"]
    training: Annotated[list[int], "rounds whose stages trained on a sample of theirs"]
    validation: Annotated[list[int], "rounds in which a sample of theirs was held out to choose the best round"]
    test: Annotated[list[int], "rounds in which a sample of theirs was in the test split"]
    unknown: Annotated[list[int], "trained rounds of which no list of people is here: assume all"]
    first_round: Annotated[int | None, "from this round on, the site's weights may hold them; null: they do not"]


class SentCopy(TypedDict):
    """An artifact or export that may hold information about the people, and who may have it."""

    receiver: Annotated[str, "the other site; `export` for files that `export` wrote here"]
    round: Annotated[int, "the round that it served"]
    purpose: Annotated[str, "`train`, `handback`, `return`, `evaluate` or `export`"]
    kind: Annotated[str, "kind of artifact, or form of the export"]
    sha256: Annotated[str, "digest of the file"]
    bytes: Annotated[int, "bytes that left, at most"]


class LocalCopy(TypedDict):
    """Files of this machine that may hold information about the people."""

    what: Annotated[str, "what they are"]
    path: Annotated[str, "file or folder; empty where this program does not know it"]
    bytes: Annotated[int, "their size"]
    delete: Annotated[str, "the command that deletes them, or what to do"]


class TrainingAgain(TypedDict):
    """A way to train again without the people, and its cost at this site."""

    way: Annotated[str, '"from_round" or "from_start"']
    round: Annotated[int, "the round after which training goes on; 0: the initial model"]
    rounds: Annotated[int, "rounds to train again, up to the last committed one"]
    training_s: Annotated[float, "how long they trained"]
    elapsed_s: Annotated[float, "how long they took, with all waits"]
    bytes: Annotated[int, "bytes of artifacts that they sent and received"]
    steps: Annotated[list[str], "what to do, in order"]


class Withdrawal(TypedDict):
    """Where information about people may be who withdraw their consent."""

    site: Annotated[str, "this site"]
    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    people: Annotated[int, "number of people asked about; none is named"]
    in_datalist: Annotated[int, "how many of them the datalist still has"]
    committed: Annotated[int, "last committed round"]
    uses: Annotated[list[GenerationUse], "by generation, oldest first"]
    sent: Annotated[list[SentCopy], "from the egress ledger"]
    figures_to: Annotated[list[str], "sites that got metrics over the whole test split while they were in it"]
    local: Annotated[list[LocalCopy], "what is on this machine"]
    again: Annotated[list[TrainingAgain], "ways to train again; empty where no weights hold them"]
    letter: Annotated[str | None, "the file with the letter to the receivers; null without `--out`"]


class PrunedFiles(TypedDict):
    """Files of one kind that are older than the bound."""

    kind: Annotated[str, "what they are"]
    files: Annotated[int, "number of files"]
    bytes: Annotated[int, "their size"]
    oldest: Annotated[float, "when the oldest was last written"]


class SitePruned(TypedDict):
    """What `prune` deletes, or would delete."""

    site: Annotated[str, "this site"]
    older_than_s: Annotated[float, "the bound"]
    kinds: Annotated[list[PrunedFiles], "by kind"]
    deleted: Annotated[bool, "whether they are deleted"]


DOCUMENTS: Mapping[str, Any] = {"withdraw": Withdrawal, "prune": SitePruned}
"""By command, the type of the document that ``--json`` prints."""
