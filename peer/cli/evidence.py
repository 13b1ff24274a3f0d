"""``mhfl-peer evidence``: equivocation proofs, each of a site that signed two artifacts for one round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import GIVEN_FILE, output, rendering
from peer.cli.site_command import SiteCall, site_command
from peer.documents.commands import EvidenceShown
from peer.errors import UsageError
from peer.site.config.site_folder import must_be_new, write_atomically

if TYPE_CHECKING:
    from rich.console import RenderableType

PATH = click.Path(path_type=Path, dir_okay=False)


@site_command()
@click.option("--verify", "file", type=GIVEN_FILE, help="Verify the proofs in a file of another site instead.")
@click.option("--federation", type=GIVEN_FILE, help="With --verify: a federation.toml, where this machine has no site.")
@click.option("--out", "--export", "out", type=PATH, help="Write the proofs to this file, for others to verify.")
def evidence(call: SiteCall, file: Path | None, federation: Path | None, out: Path | None) -> None:
    """Show proofs that a site signed two artifacts for one round.

    Each proof is two manifests under that site's signature; every site that has the federation's
    CA certificate can verify it. It shows what was signed, and not why: a backup that was restored
    while no peer was reachable gives such a proof, too.

    \b
    mhfl-peer evidence --site europe --out proofs.json
    mhfl-peer evidence --verify proofs.json --federation federation.toml
    """
    from peer.audit import evidence_files
    from peer.audit.equivocation import EvidenceFile, proofs_of, read_proofs

    if federation is not None and file is None:
        raise UsageError("--federation goes with --verify", "leave it out: the site's folder holds its own")
    if federation is None:
        folder = call.folder
        federation, source = folder.federation_toml, str(folder.path)
    config, authorities = evidence_files.trust(federation)
    if file is not None:
        proofs, source = read_proofs(file, federation=config.digest, authorities=authorities), str(file)
    else:
        proofs = proofs_of(folder)
    if out is not None:
        must_be_new(out)
        write_atomically(out, evidence_files.encode(EvidenceFile.of(config.digest, proofs)), 0o644)
    document: EvidenceShown = {
        "source": source,
        "proofs": [
            {
                "site": proof.subject.origin,
                "generation": proof.subject.generation,
                "round": proof.subject.round,
                "kind": proof.subject.kind,
                "owner": proof.subject.owner,
                "evaluation": proof.subject.evaluation,
                "sha256": list(proof.sha256),
            }
            for proof in proofs
        ],
        "exported": None if out is None else str(out),
    }
    call.emit(document, _render)


def _render(document: Mapping[str, Any]) -> RenderableType:
    if not document["proofs"]:
        return output.fields((("evidence", "no site is known to have signed two artifacts for one round"),))
    rows = [
        (
            proof["site"],
            proof["round"],
            proof["generation"],
            f"{proof['owner']}'s {proof['kind']}",
            *(digest[: rendering.SHORT] for digest in proof["sha256"]),
        )
        for proof in document["proofs"]
    ]
    return output.table(("site", "round", "generation", "artifact", "one", "other"), rows)
