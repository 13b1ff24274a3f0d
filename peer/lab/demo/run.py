"""The demonstration: real daemons on loopback train on real data; a table and a picture at the end.

It runs a federation for each method, one after the other, with the same seed and steps. The sites'
daemons are enrolled and run exactly as at hospitals. The simulator trains the pooled bound, which is
a training on the data of all sites and not a federation.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import errors
from peer.daemon import startup
from peer.documents.commands import DemoMethod, DemoResult
from peer.documents.records import RoundRecord
from peer.extras import require_extra
from peer.lab.datasets.baselines import baseline_aucs
from peer.lab.demo import gains, picture, splits
from peer.lab.demo.fork_server import ForkServer
from peer.lab.demo.local_federation import LocalFederation
from peer.lab.demo.presets import PresetSize, describe_noise, study, study_document
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.pool import SamplePool, gather
from peer.lab.experiments.result_files import CENTRALISED
from peer.lab.experiments.runs import RESULT, Run, build_runs
from peer.lab.experiments.sweep import SweepProgress, sweep
from peer.lab.statistics.means import mean
from peer.site.config import toml
from peer.site.config.site_folder import write_atomically
from peer.site.records.history import OPEN, History
from peer.train.data.prepared_folder import SUMMARY, make_empty
from peer.train.inference import model_state

POLL_S = 0.5
CROSS_SITE_S = 1800.0
LINGER_S = 60.0
WORKER_MODULES = ("peer.train.trainer", "peer.train.guest")
"""What every worker imports, which takes longer than all rounds of a table."""
SIZES = {"volume": "volume_mm3"}
"""Floors by name: numbers of the datalist whose AUC a network must beat."""


@dataclass
class DemoProgress:
    """The progress that `demo` shows while it runs: the activity in words, and each site's status."""

    activity: str
    statuses: dict[str, Mapping[str, Any]] = field(default_factory=dict)


Watch = Callable[[DemoProgress], None]


def run(
    folder: Path,
    name: str,
    methods: Sequence[str],
    size: PresetSize,
    settings: Mapping[str, Any],
    watch: Watch,
    *,
    split_count: int = 1,
) -> DemoResult:
    """Prepare the data, run the federations and the pooled bound, evaluate them; return `demo --json`'s document.

    Args:
        folder: of all data and results; it must be empty or not exist.
        settings: parameters of the methods.
        watch: called about twice a second.
        split_count: the number of splits into training and test samples over which the simulator repeats all
            methods; 1: none beside that of the daemons.

    Raises:
        PeerError: a package or data is missing, or a daemon failed.
    """
    for extra in ("data", "research"):
        require_extra(extra, "`demo`")
    started_s, experiment = time.monotonic(), study(name, methods, size, settings)
    make_empty(folder)
    watch(DemoProgress(f"preparing the data: {experiment.data.dataset}"))
    pool = gather(experiment, folder / "data")
    runs = {prepared.document["method"]: prepared for prepared in build_runs(experiment, pool, folder / "runs")}
    results = _train(folder, experiment, runs, pool, watch)
    for label in gains.joined(results):
        write_references(folder / label, experiment.metric, results)
    over_splits = None
    if split_count > 1:
        over_splits = splits.run_splits(
            study_document(name, methods, size, settings),
            range(size.seed, size.seed + split_count),
            folder / "splits",
            lambda progress: watch(DemoProgress(_describe_sweep(progress, split_count))),
        )
    document: DemoResult = {
        "folder": str(folder),
        "study": name,
        "title": experiment.title,
        "metric": experiment.metric,
        "differs": "schedule scaled",
        "size": dataclasses.asdict(size),
        "data": _describe_data(experiment, runs["local"], folder),
        "methods": results,
        "gains": gains.compare(results, experiment.metric),
        "splits": over_splits,
        "conclusion": " ".join(
            filter(None, [gains.conclude(results, experiment.metric, over_splits), *map(describe_noise, methods)])
        ),
        "picture": str(folder / "picture.html"),
        "seconds": round(time.monotonic() - started_s, 1),
    }
    picture.write(document, folder / "picture.html")
    (folder / "result.json").write_text(json.dumps(document, indent=2) + "\n")
    return document


def _train(
    folder: Path, experiment: Experiment, runs: Mapping[str, Run], pool: SamplePool, watch: Watch
) -> dict[str, DemoMethod]:
    """Run the federations and the pooled bound, one after the other, then evaluate all federations at once."""
    simulated: dict[str, DemoMethod] = {}
    federations: dict[str, LocalFederation] = {}
    with tempfile.TemporaryDirectory(prefix="mhfl-") as sockets, ForkServer(Path(sockets), WORKER_MODULES) as workers:
        for label in experiment.methods:
            runs[label].write()
            if label != CENTRALISED:
                worker = workers.command("peer.train.worker")
                federations[label] = _run_federation(folder, experiment, runs[label], pool, watch, worker)
    if CENTRALISED in experiment.methods:
        simulated[CENTRALISED] = train_simulated(experiment, runs[CENTRALISED], watch)
    watch(DemoProgress("every site's model on every site's test data"))
    matrices = _cross_site(federations)
    return {
        label: simulated.get(label) or _federation_result(federations[label], experiment.metric, matrices[label])
        for label in experiment.methods
    }


def _describe_sweep(progress: SweepProgress, split_count: int) -> str:
    return f"all methods on {split_count} splits, in the simulator: run {progress.finished} of {progress.total}"


def write_references(folder: Path, metric: str, results: Mapping[str, DemoMethod]) -> None:
    """Write ``[reference]`` into each site.toml of a federation, so that its pages show the share of the room."""
    if CENTRALISED not in results:
        return
    alone, pooled = (results[label]["sites"] for label in ("local", CENTRALISED))
    for path in (folder / "sites").glob("*/*/site.toml"):
        values = {"alone": alone[path.parent.name]["local_test"], "pooled": pooled[path.parent.name]["local_test"]}
        if None not in values.values() and values["pooled"] > values["alone"]:
            table = toml.text({"reference": {"metric": metric, **values}})
            write_atomically(path, f"{path.read_text('utf-8')}\n{table}".encode())


def _describe_data(experiment: Experiment, run: Run, folder: Path) -> dict[str, Any]:
    """Count the samples and subjects at each site, and compute the floors."""
    (partition,) = experiment.partitions.values()
    summary = json.loads((folder / "data" / SUMMARY).read_text())
    lists = {site: json.loads(run.files[f"sites/{site}/datalist.json"]) for site in partition.sites}
    tests = {site: splits["test"] for site, splits in lists.items()}
    floors = {
        name: baseline_aucs(
            {site: [entry[key] for entry in test] for site, test in tests.items()},
            {site: [entry["label"] for entry in test] for site, test in tests.items()},
        )
        for name, key in SIZES.items()
        if all(key in entry for test in tests.values() for entry in test)
    }
    return {
        "constructed": summary.get("constructed", "nothing: the sites are the hospitals")
        if partition.kind == "key"
        else "the sites, equal parts of all samples",
        "floors": summary.get("floors", {}) if partition.kind == "key" else floors,
        "sites": {
            site: {split: _count(entries) for split, entries in splits.items()} for site, splits in lists.items()
        },
    }


def _count(entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    subjects = {entry["subject"] for entry in entries if "subject" in entry}
    return {"samples": len(entries), **({"subjects": len(subjects)} if subjects else {})}


def _run_federation(
    folder: Path, experiment: Experiment, run: Run, pool: SamplePool, watch: Watch, worker: Sequence[str]
) -> LocalFederation:
    """Run one federation of daemons, which execute ``worker``, to its end."""
    method = run.document["method"]
    draft, sites = configuration(experiment, run, pool)
    with LocalFederation.create(folder / method, draft, sites) as local_federation:
        for name in sites:
            local_federation.start(name, "--worker", json.dumps(worker))
        _wait(local_federation, method, watch)
    return local_federation


def _federation_result(local_federation: LocalFederation, metric: str, matrix: Any) -> DemoMethod:
    """Collect the results of a federation that has ended."""
    return {
        "digest": local_federation.federation.digest,
        "home": str(local_federation.home),
        "sites": {name: _site_result(local_federation, metric, name, matrix) for name in matrix},
        "matrix": matrix,
    }


def train_simulated(experiment: Experiment, run: Run, watch: Watch) -> DemoMethod:
    """Carry out a run in this process, without daemons, and collect its results.

    The run is the pooled bound, which trains each site's network on the samples of all sites.
    """

    def report(progress: SweepProgress) -> None:
        committed, rounds = next(iter(progress.underway.values()), (0, 0))
        watch(DemoProgress(f"pooled bound, no federation: round {committed} of {rounds}, all networks together"))

    failed = sweep([run], jobs=1, keep=False, watch=report)
    if failed:
        raise errors.WorkerFailed(f"the pooled bound: {failed[run.id]}")
    result = json.loads((run.folder / RESULT).read_text())
    metric = experiment.metric
    return {
        "sites": {
            name: {
                "model": _describe_network(site["model"]),
                **_test_values(result["matrix"], name, metric),
                "curve": _curve(site["rounds"], metric),
                "training_s": round(site["training_s"], 1),
            }
            for name, site in result["sites"].items()
        },
        "matrix": result["matrix"],
    }


def configuration(experiment: Experiment, run: Run, pool: SamplePool) -> tuple[str, dict[str, str]]:
    """Return the draft of federation.toml, and by site the text of site.toml without ``listen``."""
    label, network_set = run.document["method"], run.document["models"]
    (partition,) = experiment.partitions.values()
    draft = experiment.federation_draft(label, network_set, partition.sites[0], seed=run.document["seed"])
    regions = str(pool.regions.resolve()) if experiment.data.regions and pool.regions is not None else None
    sites = {
        site: experiment.site_text(
            site,
            network_set,
            label,
            datalist=str((run.folder / "sites" / site / "datalist.json").resolve()),
            root=str(pool.root.resolve()),
            regions=regions,
        )
        for site in partition.sites
    }
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


def _cross_site(federations: Mapping[str, LocalFederation]) -> Any:
    """Evaluate, in a separate process, every site's model on every site's test data, by federation."""
    documents: dict[str, list[Mapping[str, Any]]] = {}
    for label, local_federation in federations.items():
        documents[label] = []
        for name in local_federation.federation.roster:
            folder = local_federation.folder(name)
            federation, site, _ = startup.load(folder)
            documents[label].append(model_state.read_newest(folder, federation, site).document())
    return model_state.run_module(
        "peer.lab.experiments.cross_site", {"federations": documents}, name="the evaluation", limit_s=CROSS_SITE_S
    )


def _site_result(local_federation: LocalFederation, metric: str, name: str, matrix: Any) -> dict[str, Any]:
    """Collect one site's results: Local and Global Test, learning curve, visitors, bytes, rounds, seconds."""
    folder = local_federation.folder(name)
    _, site, _ = startup.load(folder)
    history = History(folder, rounds=True, received=True, sent=True).read_all()
    rounds = [committed.document() for committed in history.rounds]
    return {
        "model": _describe_network({"name": site.model.name, **site.model.parameters}),
        **_test_values(matrix, name, metric),
        "curve": _curve(rounds, metric),
        "received_from": {str(record["round"]): [source["site"] for source in record["sources"]] for record in rounds},
        "sent_bytes": sum(transfer.bytes for transfer in history.sent if transfer.outcome != OPEN),
        "received_bytes": sum(transfer.bytes for transfer in history.received),
        "rounds": len(rounds),
        "fallbacks": sum(bool(record["missing"]) for record in rounds),
        "training_s": round(sum(record["duration_s"] for record in rounds), 1),
    }


def _describe_network(model: Mapping[str, Any]) -> str:
    return f"{model['name']}, width {model['width']}" if "width" in model else str(model["name"])


def _test_values(matrix: Mapping[str, Mapping[str, Mapping[str, float]]], name: str, metric: str) -> dict[str, Any]:
    """Compute Local and Global Test of a site's model."""
    # Missing if a site enlarges by another factor, or if an AUC lacks one of the classes.
    values = [metrics[metric] for metrics in matrix[name].values() if metric in metrics]
    return {
        "local_test": matrix[name][name].get(metric),
        "global_test": mean(values) if len(values) == len(matrix) else None,
    }


def _curve(rounds: Sequence[RoundRecord], metric: str) -> dict[str, float]:
    """Return the Local Test by round; the keys of a JSON object are texts."""
    return {str(record["round"]): record["metrics"][metric] for record in rounds if metric in record["metrics"]}
