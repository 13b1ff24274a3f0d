"""A site's model as a file that its operator takes away: what may be in it, what is known of it, and the ledger's row.

Torch is in the process that writes the file; here the journal is read, and the file is let go only once the ledger
holds that it leaves.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import errors
from peer.config import site_folder
from peer.config.schema import FederationConfig
from peer.config.site_folder import SiteFolder
from peer.core.commands import Source
from peer.core.worker_protocol import to_json
from peer.documents import ModelExported
from peer.extras import require_extra
from peer.files import sync_folder
from peer.inference import model_state
from peer.inference.model_state import ModelState
from peer.records.history import recent_rounds
from peer.records.journal import Journal
from peer.records.ledger import Ledger
from peer.transport.manifest import decode_manifest

PROCESS = "peer.inference.export.process"
PURPOSE = "export"
"""Of the ledger's rows; ``kind`` is the form, ``peer`` is empty: only who carries the file away knows where to."""

ENDINGS = {"pt2": ".pt2", "onnx": ".onnx"}
"""Of the files; a bundle is a folder of any name, or ends in ``.zip``."""

CARD_ENDING, BUNDLE_CARD = ".md", Path("docs", "README.md")
"""Of the model card: what is added to a file's name; where it is in a bundle, zipped or not."""

ROUNDS_TOLD = 5
"""The newest rounds whose contributors a model card names."""


@dataclass(frozen=True, slots=True)
class Consent:
    """What of other sites may be taken along, and what may not, by site with the reason."""

    sources: tuple[Source, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def release(
    folder: SiteFolder, federation: FederationConfig, standing: ModelState, *, form: str, out: Path, licence: str
) -> ModelExported:
    """Export what the site predicts with; the answer is the document of ``export --json``.

    What was written beside its place moves there only when it is compared and the ledger has its intent: a failure
    leaves nothing.

    Args:
        folder: of the site.
        federation: its own.
        standing: the finished state.
        form: ``bundle``, ``pt2`` or ``onnx``.
        out: the new file or folder.
        licence: for the model card, in words.

    Raises:
        UsageError: the name's ending is not the form's.
        ConfigError: a package of the extra ``export`` is not installed.
        StateError: the file or its card is there already.
        WorkerFailed: it cannot be exported so, or it computes something else; the message has the reason.
        DiskError: it cannot be written.
    """
    _check_name(form, out)
    if form == "onnx":
        require_extra("export", "`export --format onnx`")
    site_folder.must_be_new(out)
    card = out / BUNDLE_CARD if form == "bundle" else out.with_name(out.name + CARD_ENDING)
    site_folder.must_be_new(card)
    site_folder.make_private(out.parent)
    with contextlib.closing(Journal(standing.journal, read_only=True)) as journal:
        consent = consented(journal, standing.sources, own=folder.site)
        if not federation.plan.keeps_last_received:  # what came was trained with, and is no part of what predicts
            consent = Consent()
        facts = _facts(journal, federation, standing, consent) | {"licence": licence}
    with beside(out) as staged:
        request = {**standing.document(), "sources": to_json(consent.sources), "form": form, "facts": facts}
        answer = model_state.run_module(PROCESS, {**request, "out": str(staged / out.name)}, what="the export")
        for path in staged.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)  # weights can reveal what they were trained on
        moves = {path: out.parent / path.name for path in sorted(staged.iterdir(), reverse=True)}  # the card first
        row = {"peer": "", "purpose": PURPOSE, "kind": form, "sha256": answer["sha256"], "bytes": answer["bytes"]}
        with contextlib.closing(Ledger(folder.egress_db)) as ledger:
            _let_go(ledger, moves, {**row, "round": standing.committed, "generation": standing.generation})
    facts = answer["card"]
    return {
        "site": folder.site,
        "generation": standing.generation,
        "round": standing.committed,
        "task": federation.task.kind,
        "format": form,
        "out": str(out),
        "card": str(card),
        "sha256": answer["sha256"],
        "bytes": answer["bytes"],
        "network": facts["network"]["network"]["name"],
        "parameters": facts["parameters"],
        "included": sorted(facts["network"].get("experts", {})),
        "left_out": dict(consent.left_out),
        "checks": facts["checks"],
        "licence": licence,
    }


def consented(journal: Journal, sources: Iterable[Source], *, own: str) -> Consent:
    """Which of these sources their sites' manifests allow to be exported; what came home is this site's own."""
    allowed: dict[tuple[str, str], str] = {}
    for row in journal.records(("received",)):
        body = row["body"]
        allowed[body["peer"], body["sha256"]] = _refusal(base64.b64decode(body["body"]))
    may, may_not = [], []
    for source in sources:
        origin = str(source.origin)
        unknown = "no manifest of it is in the journal"
        reason = "" if origin == own else allowed.get((origin, source.artifact.sha256), unknown)
        if reason:
            may_not.append((origin, reason))
        else:
            may.append(source)
    return Consent(tuple(may), tuple(may_not))


def _refusal(body: bytes) -> str:
    """Why the artifact of a manifest may not be exported, empty if it may; its signature was verified when it came."""
    try:
        manifest = decode_manifest(body)
    except ValueError as error:
        return f"its manifest cannot be read: {error}"
    return "" if manifest.reexport else "its manifest does not say reexport = true"


def _facts(journal: Journal, federation: FederationConfig, standing: ModelState, consent: Consent) -> dict[str, Any]:
    """What the model card tells that only the journal and the configuration know."""
    rounds = recent_rounds(journal, last=ROUNDS_TOLD)
    measured = [row for row in journal.records(("evaluated",)) if row["body"]["metrics"]]
    measured = [row for row in measured if row["round"] <= standing.committed]
    newest = measured[-1] if measured else {"round": None, "body": {"metrics": {}}}
    return {
        "site": str(standing.setting.site_name),
        "federation": {"name": federation.name, "digest": federation.digest, "sites": list(federation.roster)},
        "method": {"name": federation.method.name, "parameters": to_json(federation.parameters)},
        "generation": standing.generation,
        "round": standing.committed,
        "rounds": federation.rounds,
        "metrics": {"round": newest["round"], "site": newest["body"]["metrics"]},
        "contributors": [
            {"round": each.number, "contributors": list(each.contributors), "missing": sorted(each.missing)}
            for each in rounds
        ],
        "left_out": dict(consent.left_out),
        "precision": standing.setting.site["training"]["precision"],
        "exported": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _check_name(form: str, out: Path) -> None:
    ending = ENDINGS.get(form)
    if ending is None and out.suffix in ENDINGS.values():
        raise errors.UsageError(f"--out {out}: a bundle is a folder, or ends in .zip", "name another")
    if ending is not None and out.suffix != ending:
        raise errors.UsageError(f"--out {out}: a file of format {form} ends in {ending}", "name another")


@contextlib.contextmanager
def beside(out: Path) -> Iterator[Path]:
    """A private folder on the same disk, which is gone afterwards with everything that is left in it."""
    try:
        staged = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise errors.DiskError(f"{out.parent} cannot be written: {error.strerror}") from error
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _let_go(ledger: Ledger, moves: Mapping[Path, Path], row: Mapping[str, Any]) -> None:
    """Write down that it leaves, move it to its place, write down that it left."""
    for place in moves.values():
        site_folder.must_be_new(place)
    intent = ledger.intend(**row)
    try:
        for staged, place in moves.items():
            staged.replace(place)
            sync_folder(place.parent)
    except OSError as error:
        ledger.settle(intent, bytes=0, outcome="broken")
        raise errors.DiskError(f"{place} cannot be written: {error.strerror}") from error
    ledger.settle(intent, bytes=row["bytes"], outcome="complete")
