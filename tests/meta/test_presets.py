"""The shipped experiments: the program can read all of them, and they cover every published row."""

import functools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.datasets import write_lungs
from models.spec import HYPER, hyper_problem, remote_spec_problem
from peer.lab.datasets import PACKAGED, PUBLISHED
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.sweep import prepare
from peer.lab.report import published
from peer.lab.report.comparison import match_sites
from peer.lab.report.published import Published, normalise_name, reference_tables
from peer.site.config.schema import FederationConfig, NamedParameters

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
PRESETS = sorted((EXAMPLES / "experiments").glob("[!_]*.toml"))
BASES = sorted((EXAMPLES / "experiments").glob("_*.toml"))
"""The files that presets extend."""
TRAINED = ("comparison", "disconnection")
"""Kinds of published tables whose rows are methods; the other tables come from the same runs."""
SHOWN = re.compile(r"^#(?=[\w\[])", re.MULTILINE)
"""The mark before a key that is shown with its default value."""


@pytest.fixture(scope="module", params=PRESETS, ids=[path.stem for path in PRESETS])
def experiment(request: pytest.FixtureRequest) -> Experiment:
    """Each preset."""
    return load(request.param)


@functools.cache
def load(path: Path) -> Experiment:
    """Read a preset once for all tests."""
    return Experiment.load(path)


def referenced_tables(experiment: Experiment) -> list[Published]:
    """The published tables whose rows a preset trains."""
    if (reference := experiment.reference) is None:
        return []
    return [
        table
        for table in reference_tables(reference.model_dump())
        if table.kind in TRAINED and table.document["table"] == reference.table
    ]


def networks(experiment: Experiment) -> Iterator[NamedParameters]:
    """Every network that a preset names."""
    yield from (model for models in experiment.models.values() for model in models.values())
    for shared in (experiment.proxy, experiment.messenger, *(row.shared_model for row in experiment.methods.values())):
        if shared is not None:
            yield shared


def test_the_page_has_the_number_of_runs(experiment: Experiment) -> None:
    page = (EXAMPLES / "experiments" / "README.md").read_text()
    (row,) = re.findall(rf"^\| [^|]*`{re.escape(experiment.name)}`.*$", page, re.MULTILINE)
    names, *cells = row.strip("|").split("|")
    counts = next(cell for cell in cells if re.fullmatch(r" [\d, ]+(each )?", cell)).replace("each", "").split(", ")
    place = re.findall(r"`([^`]+)`", names).index(experiment.name)
    repetitions = max(experiment.folds, 1) * len(experiment.seeds)
    assert int(counts[min(place, len(counts) - 1)]) == len(list(experiment.combinations())) * repetitions


def test_a_preset_says_what_it_is(experiment: Experiment) -> None:
    assert experiment.name == experiment.path.stem
    assert f" {experiment.path.name} " in experiment.path.read_text().replace("experiments/", " ")
    assert experiment.title
    assert experiment.differs
    paper = experiment.reference is not None and experiment.reference.paper != "FLamby"  # a benchmark with own work
    assert paper == experiment.budget.paper
    assert experiment.data.dataset in (PUBLISHED if paper else PACKAGED)


def test_every_row_is_a_federation_that_daemons_would_take(experiment: Experiment) -> None:
    ran = set()
    for partition, network_set, _, label in experiment.combinations():
        sites = experiment.partitions[partition].sites
        text = experiment.federation_text(label, network_set, sites, seed=0)
        assert FederationConfig.parse(text, label).plan is experiment.plan(label)
        ran.add(label)
    assert ran == experiment.methods.keys()


def test_every_network_exists_with_these_hyper_parameters(experiment: Experiment) -> None:
    task = {key: getattr(experiment.task, key) for key in ("spatial_dims", "in_channels", "classes")}
    for network in networks(experiment):
        hyper: dict[str, Any] = dict(network.__pydantic_extra__)
        taps = {key: hyper.pop(key) for key in ("features", "head") if key in hyper}
        assert remote_spec_problem({"name": network.name, **task, **taps, "hyper": hyper}) is None
        assert network.name not in HYPER or hyper_problem(network.name, hyper) is None


def test_every_published_row_is_trained_or_said_not_to_be(experiment: Experiment) -> None:
    tables = referenced_tables(experiment)
    assert bool(tables) == (experiment.reference is not None)
    absent = {normalise_name(row.method) for row in experiment.not_run}
    labels = {normalise_name(label) for label in experiment.methods}
    names = labels | {normalise_name(experiment.method_name(label)) for label in experiment.methods}
    for table in tables:
        rows = {normalise_name(label) for label in table.labels}
        assert rows <= names | absent, f"{table.source}: {sorted(rows - names - absent)}"
        assert absent <= rows, f"{table.source} has no {sorted(absent - rows)}"
        assert not absent & labels


def test_the_sites_are_the_published_columns(experiment: Experiment) -> None:
    for table in referenced_tables(experiment):
        metrics = {metric for test, _, metric in table.document["columns"] if test == "local"}
        for metric in metrics:
            for partition in experiment.partitions.values():
                assert match_sites(table, partition.sites, metric) is not None, table.sites(metric)


def test_every_published_table_has_a_preset() -> None:
    everything = json.loads(Path(published.__file__).with_name("published.json").read_text())["tables"]
    published_tables = {_key(table) for table in everything if table["kind"] in TRAINED}
    trained_tables = {_key(table.document) for path in PRESETS for table in referenced_tables(load(path))}
    assert published_tables == trained_tables


def test_several_presets_extend_every_base() -> None:
    extended = Counter(tomllib.loads(path.read_text()).get("extends") for path in (*PRESETS, *BASES))
    assert {path.name for path in BASES} == extended.keys() - {None}
    assert [name for name, count in extended.items() if count < 2] == []


def test_the_list_of_presets_is_whole() -> None:
    readme = (EXAMPLES / "experiments" / "README.md").read_text()
    assert [path.name for path in PRESETS if f"`{path.stem}`" not in readme] == []


def test_the_example_is_read_and_shows_every_key() -> None:
    path = EXAMPLES / "experiment.toml"
    Experiment.load(path)
    schema = Experiment.model_json_schema()
    known = {key for table in (schema, *schema["$defs"].values()) for key in table.get("properties", ())}
    shown = json.dumps(tomllib.loads(SHOWN.sub("", path.read_text())))
    assert [key for key in sorted(known) if f'"{key}":' not in shown] == []


def test_a_public_sets_preset_is_ready_once_the_set_is_there(tmp_path: Path) -> None:
    (path,) = (path for path in PRESETS if path.stem == "feddal-2-lung-heterogeneous")
    source = write_lungs(tmp_path / "unpacked", 40, 8)
    runs = prepare(Experiment.load(path), tmp_path / "out", source=source)
    assert [run.document["method"] for run in runs] == ["central", "proxyfl", "feddal"]
    lists = [json.loads(runs[0].files[f"sites/client-{site}/datalist.json"]) for site in (1, 2, 3)]
    assert [len(sides["training"]) + len(sides["test"]) for sides in lists] == [18, 18, 4]


def _key(table: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(table[key]) for key in ("paper", "table", "dataset", "setting"))
