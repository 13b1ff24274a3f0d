"""The demonstration: four real daemons on loopback train on real patients' annotations; one table at the end.

Two federations of the same name, seed and steps run one after the other: ``local``, where nobody sends anything, and
``fedskd``. Nothing here is a special path: sites are enrolled as hospitals are, and their daemons are the daemon.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import errors, lifecycle
from peer.core import replay
from peer.core.work import Setting, to_json
from peer.egress import Ledger
from peer.journal import Journal
from peer.loopback import Loopback

METHODS = ("local", "fedskd")
WIDTHS = {"africa": 16, "america": 15, "asia": 14, "europe": 13}
"""Initial widths of the sites' ResNet-10s: four architectures, as in FedSKD's heterogeneous setting."""
POLL_S = 0.5
CROSS_SITE_S = 600.0

DRAFT = """\
name = "lung-nodules"
description = "Malignancy of lung nodules from the shape that radiologists outlined (LIDC-IDRI)."
rounds = {rounds}
seed = {seed}

[task]
kind = "classification"
spatial_dims = 3
in_channels = 1
classes = 2

[method]
name = "{method}"
{parameters}
[stages.train]
unit = "step"
count = {steps}
learning_rate = {learning_rate}

[pace]
linger_s = 60.0
"""
SITE = """
[data]
datalist = {datalist}
input_size = [32, 32, 32]
regions = {regions}

[model]
name = "resnet10"

[model.parameters]
width = {width}
stem_stride = 2

[training]
device = "cpu"
threads = 1
batch_size = 8
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much the demonstration trains.

    ``gamma`` and ``learning_rate`` were chosen from {1, 10, 100} and {1e-3, 1e-4} by the mean AUC on a quarter of the
    training patients, with one seed; the learning rate is that of both methods.
    """

    rounds: int = 15
    steps: int = 20
    seed: int = 0
    gamma: float = 100.0
    learning_rate: float = 1e-3


@dataclass
class Progress:
    """What a watcher may show while the demonstration runs."""

    doing: str
    statuses: dict[str, Mapping[str, Any]] = field(default_factory=dict)


Watch = Callable[[Progress], None]


def run(folder: Path, size: Size, watch: Watch) -> dict[str, Any]:
    """Prepare the data, run both federations, evaluate; returns the document of ``demo --json``.

    Args:
        folder: takes everything that is made; it must be empty or not there.
        size: rounds, steps, seed.
        watch: called about twice a second.

    Raises:
        PeerError: something is missing, or a daemon ended badly.
    """
    from peer.datasets import lidc

    started_s = time.monotonic()
    watch(Progress("preparing the nodules from the readers' outlines"))
    summary = lidc.prepare(folder / "data", seed=size.seed)
    results = {method: _federation(folder, method, size, watch) for method in METHODS}
    document = {
        "folder": str(folder),
        "size": dataclasses.asdict(size),
        "data": summary,
        "methods": results,
        "seconds": round(time.monotonic() - started_s, 1),
    }
    (folder / "result.json").write_text(json.dumps(document, indent=2) + "\n")
    return document


def _federation(folder: Path, method: str, size: Size, watch: Watch) -> dict[str, Any]:
    """Run one federation to its end; its figures."""
    sites = {
        name: SITE.format(
            datalist=json.dumps(str((folder / "data" / name / "datalist.json").resolve())),
            regions=json.dumps(str((folder / "data" / name / "regions.nii.gz").resolve())),
            width=width,
        )
        for name, width in WIDTHS.items()
    }
    draft = DRAFT.format(
        rounds=size.rounds,
        seed=size.seed,
        method=method,
        steps=size.steps,
        learning_rate=size.learning_rate,
        parameters=f"gamma = {size.gamma}\n" if method == "fedskd" else "",
    )
    with Loopback.found(folder / method, draft, sites) as loopback:
        for name in sites:
            loopback.start(name)
        _wait(loopback, method, watch)
    watch(Progress(f"{method}: every site's model on every site's test patients"))
    matrix = _cross_site(loopback)
    return {
        "digest": loopback.federation.digest,
        "home": str(loopback.home),
        "sites": {name: _figures(loopback, name, matrix) for name in sites},
        "matrix": matrix,
    }


def _wait(loopback: Loopback, method: str, watch: Watch) -> None:
    """Until every daemon has left in order."""
    progress = Progress(f"{method}: four daemons on loopback")
    while any(daemon.poll() is None for daemon in loopback.daemons.values()):
        for name, daemon in loopback.daemons.items():
            code = daemon.poll()
            if code:
                lines = loopback.console(name).strip().splitlines()
                raise errors.WorkerFailed(f"the daemon of {name} ended with {code}: {lines[-1] if lines else ''}")
            try:
                progress.statuses[name] = loopback.show(name, "status")
            except errors.DaemonDown:
                continue
        watch(progress)
        time.sleep(POLL_S)


def _cross_site(loopback: Loopback) -> Any:
    """The matrix of metrics, computed in a process of its own."""
    sites = []
    for name in loopback.federation.roster:
        folder = loopback.folder(name)
        federation, site, _ = lifecycle.load(folder)
        home = folder.generation(folder.generations()[-1])
        journal = Journal(home / "journal.db", read_only=True)
        setting = Setting(
            site_name=name,
            federation_digest=federation.digest,
            federation=federation.model_dump(mode="json"),
            site=site.model_dump(mode="json"),
            home=str(home),
            base_folder=str(folder.path),
        )
        sites.append({"setting": to_json(setting), "state": replay.recover(journal.rows()).state})
        journal.close()
    done = subprocess.run(
        [sys.executable, "-m", "peer.evaluation.crosssite"],
        input=json.dumps({"sites": sites}),
        capture_output=True,
        text=True,
        timeout=CROSS_SITE_S,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise errors.WorkerFailed(f"the evaluation failed: {lines[-1] if lines else 'it said nothing'}")
    return json.loads(done.stdout)


def _figures(loopback: Loopback, name: str, matrix: Any) -> dict[str, Any]:
    """One site's row: Local and Global Test, bytes, seconds of training."""
    folder = loopback.folder(name)
    ledger = Ledger(folder.egress_db, read_only=True)
    journal = Journal(folder.generation(folder.generations()[-1]) / "journal.db", read_only=True)
    records = replay.round_records(journal.rows())
    sent = sum(record.get("sent_bytes", 0) for record in ledger.transfers())
    received = sum(row["body"]["bytes"] for row in journal.records(("received",)))
    ledger.close()
    journal.close()
    aucs = [metrics["auc"] for metrics in matrix[name].values()]
    return {
        "width": WIDTHS[name],
        "local_test_auc": matrix[name][name]["auc"],
        "global_test_auc": statistics.fmean(aucs),
        "sent_bytes": sent,
        "received_bytes": received,
        "rounds": len(records),
        "fallbacks": sum(bool(record["missing"]) for record in records),
        "training_s": round(sum(record["duration_s"] for record in records), 1),
    }
