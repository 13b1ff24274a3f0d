"""The demonstration: real daemons on loopback train on real data; one table at the end.

It runs a federation for each method, one after the other, with the same seed and steps. The sites'
daemons are enrolled and run exactly as at hospitals.
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
from peer.config import toml
from peer.daemon import startup
from peer.data.adapters import DATASETS
from peer.data.adapters.prepared_folder import DATALIST, REGIONS
from peer.demo.local_federation import LocalFederation
from peer.demo.presets import PresetSize, networks, study
from peer.documents import DemoMethod, DemoResult
from peer.extras import require_extra
from peer.inference import model_state
from peer.records.history import OPEN, History
from peer.research.experiment import Experiment

POLL_S = 0.5
CROSS_SITE_S = 1800.0
LINGER_S = 60.0


@dataclass
class DemoProgress:
    """What `demo` shows while it runs: the activity in words, and each site's status."""

    activity: str
    statuses: dict[str, Mapping[str, Any]] = field(default_factory=dict)


Watch = Callable[[DemoProgress], None]


def run(folder: Path, name: str, methods: Sequence[str], size: PresetSize, watch: Watch) -> DemoResult:
    """Prepare the data, run the federations and evaluate them; returns the document of ``demo
    --json``.

    Args:
        folder: of all data and results; it must be empty or not exist.
        watch: called about twice a second.

    Raises:
        PeerError: a package or data is missing, or a daemon failed.
    """
    require_extra("data", "`demo`")
    started_s, experiment = time.monotonic(), study(name, size)
    data = experiment.data
    watch(DemoProgress(f"preparing the data: {data.dataset}"))
    dataset = importlib.import_module(DATASETS[str(data.dataset)])
    summary = dataset.prepare(folder / "data", seed=size.seed, **data.options)
    results = {method: _run_federation(folder, experiment, method, size, watch) for method in methods}
    document: DemoResult = {
        "folder": str(folder),
        "study": name,
        "title": experiment.title,
        "metric": experiment.metric,
        "differs": "schedule scaled",
        "size": dataclasses.asdict(size),
        "data": summary,
        "methods": results,
        "seconds": round(time.monotonic() - started_s, 1),
    }
    (folder / "result.json").write_text(json.dumps(document, indent=2) + "\n")
    return document


def _run_federation(folder: Path, experiment: Experiment, method: str, size: PresetSize, watch: Watch) -> DemoMethod:
    """Run one federation to its end, and collect its results."""
    draft, sites = configuration(experiment, method, seed=size.seed, data=folder / "data")
    with LocalFederation.create(folder / method, draft, sites) as local_federation:
        for name in sites:
            local_federation.start(name)
        _wait(local_federation, method, watch)
    watch(DemoProgress(f"{method}: every site's model on every site's test data"))
    matrix = _cross_site(local_federation)
    return {
        "digest": local_federation.federation.digest,
        "home": str(local_federation.home),
        "sites": {name: _site_result(local_federation, experiment.metric, name, matrix) for name in sites},
        "matrix": matrix,
    }


def configuration(experiment: Experiment, method: str, *, seed: int, data: Path) -> tuple[str, dict[str, str]]:
    """The draft of federation.toml, and by site the text of site.toml without ``listen``."""
    network_set, (partition,) = networks(method), experiment.partitions.values()
    draft = experiment.federation_draft(method, network_set, partition.sites[0], seed=seed)
    sites = {}
    for site in partition.sites:
        folder = (data / site).resolve()
        regions = str(folder / REGIONS) if experiment.data.regions else None
        sites[site] = experiment.site_text(
            site, network_set, method, datalist=str(folder / DATALIST), root=None, regions=regions
        )
    return toml.text({**draft, "pace": {"linger_s": LINGER_S}}), sites


def _wait(local_federation: LocalFederation, method: str, watch: Watch) -> None:
    progress = DemoProgress(f"{method}: {len(local_federation.daemons)} daemons on loopback")
    while any(daemon.poll() is None for daemon in local_federation.daemons.values()):
        for name, daemon in local_federation.daemons.items():
            code = daemon.poll()
            if code:
                lines = local_federation.console(name).strip().splitlines()
                raise errors.WorkerFailed(f"the daemon of {name} ended with {code}: {lines[-1] if lines else ''}")
            try:
                progress.statuses[name] = local_federation.show(name, "status")
            except errors.DaemonDown:
                continue
        watch(progress)
        time.sleep(POLL_S)


def _cross_site(local_federation: LocalFederation) -> Any:
    """Evaluate every site's model on every site's test data, in a process of its own."""
    sites = []
    for name in local_federation.federation.roster:
        folder = local_federation.folder(name)
        federation, site, _ = startup.load(folder)
        sites.append(model_state.read_newest(folder, federation, site).document())
    return model_state.run_module(
        "peer.research.cross_site", {"sites": sites}, name="the evaluation", limit_s=CROSS_SITE_S
    )


def _site_result(local_federation: LocalFederation, metric: str, name: str, matrix: Any) -> dict[str, Any]:
    """One site's results: Local and Global Test, bytes, rounds, seconds of training."""
    folder = local_federation.folder(name)
    _, site, _ = startup.load(folder)
    history = History(folder, rounds=True, received=True, sent=True).read_all()
    rounds = history.rounds
    # Missing where a site enlarges by another factor, or where an AUC lacks one of the classes.
    values = [metrics[metric] for metrics in matrix[name].values() if metric in metrics]
    return {
        "model": f"{site.model.name}, width {site.model.parameters['width']}",
        "local_test": matrix[name][name].get(metric),
        "global_test": statistics.fmean(values) if len(values) == len(matrix) else None,
        "sent_bytes": sum(transfer.bytes for transfer in history.sent if transfer.outcome != OPEN),
        "received_bytes": sum(transfer.bytes for transfer in history.received),
        "rounds": len(rounds),
        "fallbacks": sum(bool(committed.missing) for committed in rounds),
        "training_s": round(sum(committed.duration_s for committed in rounds), 1),
    }
