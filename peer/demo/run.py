"""The demonstration: real daemons on loopback train on real data; one table at the end.

Federations of the same name, seed and steps run one after the other: ``local``, where nobody sends anything, and each
method that was asked for. Nothing here is a special path: sites are enrolled as hospitals are, and their daemons are
the daemon.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import errors
from peer.core import site_memory
from peer.daemon import startup
from peer.data.adapters import DATASETS
from peer.demo.local_federation import LocalFederation
from peer.demo.presets import STUDIES, DemoPreset, PresetSize
from peer.documents import DemoMethod, DemoResult
from peer.inference import model_state
from peer.records.journal import Journal
from peer.records.ledger import Ledger

POLL_S = 0.5
CROSS_SITE_S = 1800.0


@dataclass
class DemoProgress:
    """What a watcher may show while the demonstration runs."""

    doing: str
    statuses: dict[str, Mapping[str, Any]] = field(default_factory=dict)


Watch = Callable[[DemoProgress], None]


def run(folder: Path, name: str, methods: Sequence[str], size: PresetSize, watch: Watch) -> DemoResult:
    """Prepare the data, run the federations, evaluate; returns the document of ``demo --json``.

    Args:
        folder: takes everything that is made; it must be empty or not there.
        name: of a study, a key of ``STUDIES``.
        methods: run one after the other, on the same data, seeds and steps.
        size: rounds, steps, seed.
        watch: called about twice a second.

    Raises:
        PeerError: something is missing, or a daemon ended badly.
    """
    started_s, study = time.monotonic(), STUDIES[name]
    watch(DemoProgress(f"preparing the data: {study.dataset}"))
    dataset = importlib.import_module(DATASETS[study.dataset])
    summary = dataset.prepare(folder / "data", seed=size.seed, **study.options)
    results = {method: _federation(folder, study, method, size, watch) for method in methods}
    document: DemoResult = {
        "folder": str(folder),
        "study": name,
        "title": study.title,
        "metric": study.metric,
        "differs": "schedule scaled",
        "size": dataclasses.asdict(size),
        "data": summary,
        "methods": results,
        "seconds": round(time.monotonic() - started_s, 1),
    }
    (folder / "result.json").write_text(json.dumps(document, indent=2) + "\n")
    return document


def _federation(folder: Path, study: DemoPreset, method: str, size: PresetSize, watch: Watch) -> DemoMethod:
    """Run one federation to its end; its figures."""
    sites = {name: study.site(name, method, folder / "data" / name) for name in study.models}
    with LocalFederation.found(folder / method, study.draft(method, size), sites) as loopback:
        for name in sites:
            loopback.start(name)
        _wait(loopback, method, watch)
    watch(DemoProgress(f"{method}: every site's model on every site's test data"))
    matrix = _cross_site(loopback)
    return {
        "digest": loopback.federation.digest,
        "home": str(loopback.home),
        "sites": {name: _figures(loopback, study, name, matrix) for name in sites},
        "matrix": matrix,
    }


def _wait(loopback: LocalFederation, method: str, watch: Watch) -> None:
    """Until every daemon has left in order."""
    progress = DemoProgress(f"{method}: {len(loopback.daemons)} daemons on loopback")
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


def _cross_site(loopback: LocalFederation) -> Any:
    """The matrix of metrics, computed in a process of its own."""
    sites = []
    for name in loopback.federation.roster:
        folder = loopback.folder(name)
        federation, site, _ = startup.load(folder)
        sites.append(model_state.standing(folder, federation, site).document())
    return model_state.run_module(
        "peer.research.cross_site", {"sites": sites}, what="the evaluation", limit_s=CROSS_SITE_S
    )


def _figures(loopback: LocalFederation, study: DemoPreset, name: str, matrix: Any) -> dict[str, Any]:
    """One site's row: Local and Global Test, bytes, seconds of training."""
    folder = loopback.folder(name)
    _, site, _ = startup.load(folder)
    ledger = Ledger(folder.egress_db, read_only=True)
    journal = Journal(folder.generation(folder.generations()[-1]) / "journal.db", read_only=True)
    records = site_memory.round_records(journal.rows())
    sent = sum(record.get("sent_bytes", 0) for record in ledger.transfers())
    received = sum(row["body"]["bytes"] for row in journal.records(("received",)))
    ledger.close()
    journal.close()
    # A site that enlarges by another factor cannot be tried on, and an AUC needs both classes.
    found = [metrics[study.metric] for metrics in matrix[name].values() if study.metric in metrics]
    return {
        "model": f"{site.model.name}, width {site.model.parameters['width']}",
        "local_test": matrix[name][name].get(study.metric),
        "global_test": statistics.fmean(found) if len(found) == len(matrix) else None,
        "sent_bytes": sent,
        "received_bytes": received,
        "rounds": len(records),
        "fallbacks": sum(bool(record["missing"]) for record in records),
        "training_s": round(sum(record["duration_s"] for record in records), 1),
    }
