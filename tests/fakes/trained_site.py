"""A site whose journal says who was trained on in each round; no daemon runs, and nothing is trained."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fakes.drafts import draft, site_text
from fakes.sites import INITIALISED, append_rows, committed
from peer.cohorts import Cohorts
from peer.core.roster import SiteName
from peer.site.config.site_folder import SiteFolder
from peer.site.records.ledger import Ledger


class TrainedSite:
    """Asia in the federation ``trial``, with a datalist, a journal, checkpoints and a ledger."""

    def __init__(self, home: Path) -> None:
        self.folder = SiteFolder(home, "trial", SiteName("asia"))
        self.folder.path.mkdir(parents=True)
        names = ("asia", "europe", "africa")
        self.folder.federation_toml.write_text(draft("trial", site=[{"name": name} for name in names]))
        self.folder.site_toml.write_text(site_text())
        self.datalist = self.folder.path / "datalist.json"
        self.begin()

    def begin(self) -> None:
        """Begin a generation."""
        self.generation = self.folder.create_generation()
        self.home = self.folder.generation(self.generation)
        self.cohorts = Cohorts(self.home)
        self.cohorts.create()
        append_rows(self.folder, INITIALISED, generation=self.generation)

    def list(self, *subjects: str, test: Iterable[str] = ()) -> None:
        """Write the datalist: an image of each subject, in training or in ``test``."""
        lists = {"training": subjects, "test": test}
        entries = {
            name: [{"image": f"{each}.npy", "label": 0, "subject": each} for each in people]
            for name, people in lists.items()
        }
        self.datalist.write_text(json.dumps(entries))

    def train(self, round: int, training: Iterable[str] | None, *, validation: str = "", test: str = "") -> str:
        """Train a round on these people, of whom nothing is recorded if ``None``; return its artifact's digest."""
        cohort = None
        if training is not None:
            people = {"training": training, "validation": validation.split(), "test": test.split()}
            cohort = self.cohorts.write(people)
        sha256, state = f"{self.generation:032x}{round:032x}", f"round-{round:06d}/train"
        artifact = {"kind": "model", "owner": "asia", "sha256": sha256, "bytes": 3, "steps": 0, "spec": {}}
        row: dict[str, Any] = {"position": 0, "stage": "train", "state": state, "artifact": artifact, "metrics": {}}
        row |= {"threads": 1, "duration_s": 60.0, "publish": round} | ({"cohort": cohort} if cohort else {})
        ended = committed(round, state, generation=self.generation, duration_s=60.0)
        published = ("published", round, {"artifact": artifact})
        append_rows(self.folder, ("trained", round, row), ended, published, generation=self.generation)
        (self.home / "checkpoints" / state).mkdir(parents=True)
        (self.home / "checkpoints" / state / "record.json").write_text("{}")
        (self.home / "artifacts" / f"{sha256}.safetensors").write_bytes(b"own")
        return sha256

    def send(self, sha256: str, to: str, *, round: int, outcome: str = "complete", **facts: Any) -> None:
        transfer = {"purpose": "train", "kind": "model", "round": round, "generation": self.generation, **facts}
        with contextlib.closing(Ledger(self.folder.egress_db)) as ledger:
            intent = ledger.intend(peer=to, sha256=sha256, bytes=3, **transfer)
            ledger.settle(intent, bytes=0 if outcome == "broken" else 3, outcome=outcome)
