"""Export a site's model to a file for its operator: other sites' consent, the model card's facts, the ledger's row.

A separate process, which loads torch, writes the file. This module reads the journal, and moves the file to its path
only once the ledger contains the intent.
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
from peer.core.artifacts import Source
from peer.core.worker_protocol import to_json
from peer.documents.commands import ModelExported
from peer.extras import require_extra
from peer.files import sync_folder
from peer.net.transport.manifest import decode_manifest
from peer.site.config import site_folder
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.records.history import recent_rounds
from peer.site.records.journal import Journal
from peer.site.records.ledger import EMPTY, Head, Ledger
from peer.train.inference import model_state
from peer.train.inference.model_state import ModelState

PROCESS = "peer.train.inference.export.process"
PURPOSE = "export"
"""Purpose in the ledger's rows; ``kind`` is the form, and ``peer`` is empty, since only the operator knows it."""

ENDINGS = {"pt2": ".pt2", "onnx": ".onnx"}
"""Suffixes of the files; a bundle is a folder of any name, or ends in ``.zip``."""

CARD_ENDING, BUNDLE_CARD = ".md", Path("docs", "README.md")
"""Paths of the model card: a suffix added to a file's name; the path in a bundle, zipped or not."""

ROUNDS_NAMED = 5
"""Number of newest rounds whose contributors a model card names."""


@dataclass(frozen=True, slots=True)
class Consent:
    """Other sites' artifacts that the export may include, and why sites are left out."""

    sources: tuple[Source, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def export_model(
    folder: SiteFolder, federation: FederationConfig, state: ModelState, *, form: str, out: Path, licence: str
) -> ModelExported:
    """Export the site's predictor; return the document of ``export --json``.

    The file moves from a staging folder to its path only after the comparison, and once the ledger contains the intent.
    A failure leaves no file behind.

    Raises:
        UsageError: the file name's suffix is not the form's.
        ConfigError: a package of the extra ``export`` is not installed.
        StateError: the file or its card already exists.
        WorkerFailed: the form cannot represent the model, or the file's outputs differ; the
            message gives the reason.
        DiskError: it cannot be written.
    """
    _check_name(form, out)
    if form == "onnx":
        require_extra("export", "`export --format onnx`")
    site_folder.must_be_new(out)
    card = out / BUNDLE_CARD if form == "bundle" else out.with_name(out.name + CARD_ENDING)
    site_folder.must_be_new(card)
    site_folder.make_private(out.parent)
    with contextlib.closing(Journal(state.journal, read_only=True)) as journal:
        consent = collect_consent(journal, state.sources, own=folder.site)
        if not federation.plan.keeps_last_received:  # the predictor does not use received artifacts
            consent = Consent()
        facts = _facts(journal, federation, state, consent) | {"licence": licence}
    head = _ledger_head(folder)
    facts["ledger"] = {"rows": head.count, "hash": head.hash}
    with staging_folder(out) as staged:
        request = {**state.document(), "sources": to_json(consent.sources), "form": form, "facts": facts}
        answer = model_state.run_module(PROCESS, {**request, "out": str(staged / out.name)}, name="the export")
        for path in staged.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)  # weights can reveal what they were trained on
        destinations = {
            path: out.parent / path.name for path in sorted(staged.iterdir(), reverse=True)
        }  # the card first
        row = {"peer": "", "purpose": PURPOSE, "kind": form, "sha256": answer["sha256"], "bytes": answer["bytes"]}
        with contextlib.closing(Ledger(folder.egress_db)) as ledger:
            _release_files(ledger, destinations, {**row, "round": state.committed, "generation": state.generation})
    facts = answer["card"]
    return {
        "site": folder.site,
        "generation": state.generation,
        "round": state.committed,
        "choice": state.choice,
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


def collect_consent(journal: Journal, sources: Iterable[Source], *, own: str) -> Consent:
    """Collect the sources whose sites' manifests allow an export; the site's own needs no consent."""
    allowed: dict[tuple[str, str], str] = {}
    for row in journal.records(("received",)):
        body = row["body"]
        allowed[body["peer"], body["sha256"]] = _refusal(base64.b64decode(body["body"]))
    allowed_sources, left_out = [], []
    for source in sources:
        origin = str(source.origin)
        unknown = "no manifest of it is in the journal"
        reason = "" if origin == own else allowed.get((origin, source.artifact.sha256), unknown)
        if reason:
            left_out.append((origin, reason))
        else:
            allowed_sources.append(source)
    return Consent(tuple(allowed_sources), tuple(left_out))


def _ledger_head(folder: SiteFolder) -> Head:
    """Return the head of the site's egress ledger, before the export is a row of it."""
    if not folder.egress_db.exists():
        return EMPTY
    with contextlib.closing(Ledger(folder.egress_db, read_only=True)) as ledger:
        return ledger.head


def _refusal(body: bytes) -> str:
    """Return why a received manifest, whose signature is verified, allows no export; empty if it does."""
    try:
        manifest = decode_manifest(body)
    except ValueError as error:
        return f"its manifest cannot be read: {error}"
    return "" if manifest.reexport else "its manifest does not say reexport = true"


def _facts(journal: Journal, federation: FederationConfig, state: ModelState, consent: Consent) -> dict[str, Any]:
    """Collect the model card's facts from the journal and the configuration."""
    newest_rounds = [committed.row for committed in recent_rounds(journal, last=federation.rounds)]
    rounds = [row for row in newest_rounds if row.round <= state.committed]
    evaluated = [row for row in journal.records(("evaluated",)) if row["body"]["metrics"]]
    evaluated = [row for row in evaluated if row["round"] <= state.committed]
    newest = evaluated[-1] if evaluated else {"round": None, "body": {"metrics": {}}}
    return {
        "site": str(state.setting.site_name),
        "contact": state.setting.site["contact"],
        "federation": {"name": federation.name, "digest": federation.digest, "sites": list(federation.roster)},
        "method": {"name": federation.method.name, "parameters": to_json(federation.parameters)},
        "generation": state.generation,
        "round": state.committed,
        "choice": state.choice,
        "rounds": federation.rounds,
        "metrics": {"round": newest["round"], "site": newest["body"]["metrics"]},
        "samples": next((dict(body["samples"]) for _, _, body in journal.newest(("initialised",))), {}),
        "contributors": [
            {"round": row.round, "contributors": list(row.contributors), "missing": sorted(row.missing)}
            for row in rounds[-ROUNDS_NAMED:]
        ],
        "left_out": dict(consent.left_out),
        "precision": state.setting.site["training"]["precision"],
        "exported": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _check_name(form: str, out: Path) -> None:
    ending = ENDINGS.get(form)
    if ending is None and out.suffix in ENDINGS.values():
        raise errors.UsageError(f"--out {out}: a bundle is a folder, or ends in .zip", "name another")
    if ending is not None and out.suffix != ending:
        raise errors.UsageError(f"--out {out}: a file of format {form} ends in {ending}", "name another")


@contextlib.contextmanager
def staging_folder(out: Path) -> Iterator[Path]:
    """Create a private folder beside the path, on the same disk; delete it afterwards with its content."""
    try:
        staged = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise errors.DiskError(f"{out.parent} cannot be written: {error.strerror}") from error
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _release_files(ledger: Ledger, destinations: Mapping[Path, Path], row: Mapping[str, Any]) -> None:
    """Write the intent to the ledger, move the files to their paths, write the outcome."""
    for path in destinations.values():
        site_folder.must_be_new(path)
    intent = ledger.intend(**row)
    try:
        for staged, path in destinations.items():
            staged.replace(path)
            sync_folder(path.parent)
    except OSError as error:
        ledger.settle(intent, bytes=0, outcome="broken")
        raise errors.DiskError(f"{path} cannot be written: {error.strerror}") from error
    ledger.settle(intent, bytes=row["bytes"], outcome="complete")
