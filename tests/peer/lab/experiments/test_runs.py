"""The runs of an experiment: whose data is where, and what is refused before anything is trained."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.datasets import write_lungs
from fakes.json_documents import change_documents
from peer.errors import DataError, StateError
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.pool import gather
from peer.lab.experiments.runs import Run, build_runs
from peer.train.data.datalist import inspect_datalist

Write = Callable[..., Path]


def write_runs(path: Path, out: Path) -> list[Run]:
    experiment = Experiment.load(path)
    runs = build_runs(experiment, gather(experiment, out / "data"), out / "runs")
    for run in runs:
        run.write()
    return runs


def entries(run: Run, site: str) -> Any:
    return json.loads((run.folder / f"sites/{site}/datalist.json").read_text())


def read_pool(folder: Path) -> Any:
    return json.loads((folder / "pool/pool.json").read_text())["training"]


def write_pool(folder: Path, training: list[dict[str, Any]], test: Sequence[dict[str, Any]] = ()) -> None:
    (folder / "pool/pool.json").write_text(json.dumps({"training": training, "test": list(test)}))


def test_every_combination_is_a_run(experiment: Write, tmp_path: Path) -> None:
    runs = write_runs(experiment(replace={"seeds = [0]": "seeds = [0, 1]"}), tmp_path / "out")
    assert [run.id for run in runs] == [
        f"even.mixed.all.{method}.fold-0.seed-{seed}" for method in ("local", "fedskd") for seed in (0, 1)
    ]
    assert entries(runs[0], "asia") == entries(runs[2], "asia"), "all methods have the same data"


def test_a_site_can_train_on_what_is_written(experiment: Write, tmp_path: Path) -> None:
    (run, *_) = write_runs(experiment(), tmp_path / "out")
    seen_names: set[str] = set()
    for site in ("africa", "asia", "europe"):
        datalist = inspect_datalist(run.folder / f"sites/{site}/datalist.json", root=tmp_path / "pool", classes=2)
        assert not datalist.problems
        assert (len(datalist.training), len(datalist.test)) == (12, 4)
        names = datalist.subjects("training") | datalist.subjects("test")
        assert not names & seen_names
        seen_names |= names


def test_folds_test_every_sample_once(experiment: Write, tmp_path: Path) -> None:
    runs = write_runs(experiment("[methods.local]\n", replace={"test_share = 0.25": "folds = 4"}), tmp_path / "out")
    assert [run.document["fold"] for run in runs] == [0, 1, 2, 3]
    tested = [entry["image"] for run in runs for entry in entries(run, "asia")["test"]]
    everything = entries(runs[0], "asia")
    assert sorted(tested) == sorted(entry["image"] for split in everything.values() for entry in split)


def test_a_partition_can_have_its_own_share_for_the_test(experiment: Write, tmp_path: Path) -> None:
    own = {'kind = "equal"': 'kind = "equal"\ntest_share = 0.75'}
    (run,) = write_runs(experiment("[methods.local]\n", replace=own), tmp_path / "out")
    splits = entries(run, "asia")
    assert len(splits["test"]) == 3 * len(splits["training"])


def test_the_pooled_bound_trains_on_all_training_data_and_tests_on_its_own(experiment: Write, tmp_path: Path) -> None:
    local, pooled = write_runs(experiment("[methods.local]\n[methods.centralised]\n"), tmp_path / "out")
    parts = [entry for site in ("africa", "asia", "europe") for entry in entries(local, site)["training"]]
    assert entries(pooled, "asia")["training"] == parts
    assert entries(pooled, "asia")["test"] == entries(local, "asia")["test"]


def test_removed_sites_are_in_no_roster(experiment: Write, tmp_path: Path) -> None:
    runs = write_runs(experiment('[methods.local]\n[links.fewer]\nremoved = ["asia"]\n'), tmp_path / "out")
    (fewer,) = [run for run in runs if run.document["links"] == "fewer"]
    assert "asia" not in (fewer.folder / "federation.toml").read_text()
    assert not (fewer.folder / "sites/asia").exists()


def test_an_image_under_two_names_is_a_leak(experiment: Write, tmp_path: Path) -> None:
    path = experiment()
    images = tmp_path / "pool/images"
    (images / "1.npy").write_bytes((images / "3.npy").read_bytes())
    with pytest.raises(DataError, match=r"1\.npy"):
        write_runs(path, tmp_path / "out")


def test_an_experiment_may_grow_and_a_run_of_other_settings_is_refused(experiment: Write, tmp_path: Path) -> None:
    write_runs(experiment("[methods.local]\n"), tmp_path / "out")
    assert len(write_runs(experiment(), tmp_path / "out")) == 2
    with pytest.raises(StateError, match="other settings") as refusal:
        write_runs(experiment(replace={"steps = 2\n": "steps = 3\n"}), tmp_path / "out")
    assert "--out" in refusal.value.remedy
    assert "'count = 2', now 'count = 3'" in str(refusal.value)


def test_a_run_of_another_version_is_refused(experiment: Write, tmp_path: Path) -> None:
    (run, *_) = write_runs(experiment(), tmp_path / "out")
    for document in change_documents(run.folder, "run.json"):
        document["version"] = "0.0.1"
    with pytest.raises(StateError, match=r"mhfl-peer 0\.0\.1"):
        write_runs(experiment(), tmp_path / "out")


@pytest.mark.e2e
def test_a_folder_of_results_can_be_moved(experiment: Write, tmp_path: Path) -> None:
    path = experiment(replace={'pool = "pool/pool.json"': 'dataset = "digits"', "classes = 2": "classes = 10"})
    (run, *_) = write_runs(path, tmp_path / "out")
    text = (run.folder / "sites/asia/site.toml").read_text()
    assert str(tmp_path) not in text
    assert (run.folder / "sites/asia" / "../../../../data/images").is_dir()


def test_duplicates_can_be_dropped_and_one_for_testing_stays(experiment: Write, tmp_path: Path) -> None:
    dropping = {'pool = "pool/pool.json"': 'pool = "pool/pool.json"\nduplicates = "drop"', "test_share = 0.25\n": ""}
    path = experiment("[methods.local]\n", replace=dropping)
    pool = read_pool(tmp_path)
    np.save(tmp_path / "pool/images/47.npy", np.load(tmp_path / "pool/images/3.npy").astype(np.float64))
    write_pool(tmp_path, pool[:24], pool[24:])
    splits = {entry["image"]: entry["split"] for entry in gather(Experiment.load(path), tmp_path / "data").entries}
    assert splits.keys() == {f"images/{index}.npy" for index in range(48)} - {"images/3.npy"}
    assert splits["images/47.npy"] == "test"


def test_what_must_not_be_divided_is_a_key_of_the_entries(experiment: Write, tmp_path: Path) -> None:
    path = experiment("[methods.local]\n", replace={'pool = "pool/pool.json"': 'pool = "pool"\nsubject = "image"'})
    write_pool(tmp_path, [{**entry, "subject": f"class-{entry['label']}"} for entry in read_pool(tmp_path)])
    (run,) = write_runs(path, tmp_path / "out")
    assert len(entries(run, "asia")["test"]) == 4
    with pytest.raises(DataError, match="no sample is left for 'europe'"):
        write_runs(experiment("[methods.local]\n"), tmp_path / "kept")


def test_an_unknown_key_cannot_be_the_subject(experiment: Write, tmp_path: Path) -> None:
    path = experiment("[methods.local]\n", replace={'pool = "pool/pool.json"': 'pool = "pool"\nsubject = "slide"'})
    with pytest.raises(DataError, match="no entry has the key 'slide'"):
        gather(Experiment.load(path), tmp_path / "data")


def test_what_is_chosen_on_one_part_is_reported_on_other_subjects(experiment: Write, tmp_path: Path) -> None:
    path = experiment("[methods.local]\n")
    pool = [{**entry, "subject": f"patient-{index // 2}"} for index, entry in enumerate(read_pool(tmp_path))]
    write_pool(tmp_path, pool)
    text = path.read_text()

    def select(part: str) -> set[str]:
        path.write_text(text.replace("[data]\n", f'[data]\npart = "{part}"\n'))
        return {str(entry["subject"]) for entry in gather(Experiment.load(path), tmp_path / "data").entries}

    tuning, reported = select("tuning"), select("reported")
    assert (len(tuning), len(reported)) == (8, 16)
    assert not tuning & reported
    write_pool(tmp_path, pool[::-1])
    assert select("tuning") == tuning


def test_region_masks_may_lie_where_a_public_set_was_unpacked(experiment: Write, tmp_path: Path) -> None:
    changes = {
        'pool = "pool/pool.json"': 'dataset = "lung-masks"\nregions = true',
        'kind = "classification"': 'kind = "segmentation"',
        "test_share = 0.25": "test_share = 0.5",
    }
    loaded = Experiment.load(experiment("[methods.local]\n", replace=changes))
    source = write_lungs(tmp_path / "unpacked", 12, 16)
    with pytest.raises(DataError, match=r"unpacked holds no regions\.nii\.gz"):
        gather(loaded, tmp_path / "without", source=source)
    (source / "regions.nii.gz").touch()
    assert gather(loaded, tmp_path / "with", source=source).regions == source / "regions.nii.gz"


def test_experiment_pool_and_results_can_be_moved_together(experiment: Write, tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    path = experiment()
    for name in ("pool", "experiment.toml"):
        (tmp_path / name).rename(before / name)
    (run, *_) = write_runs(before / path.name, before / "out")
    before.rename(tmp_path / "after")
    (again, *_) = write_runs(tmp_path / "after" / path.name, tmp_path / "after/out")
    assert again.document["digest"] == run.document["digest"]
    assert str(tmp_path / "after/pool") in (again.folder / "sites/asia/site.toml").read_text()


def test_another_pool_is_another_run(experiment: Write, tmp_path: Path) -> None:
    write_runs(experiment(), tmp_path / "out")
    (tmp_path / "pool").rename(tmp_path / "other")
    path = tmp_path / "experiment.toml"
    path.write_text(path.read_text().replace('"pool/pool.json"', '"other/pool.json"'))
    with pytest.raises(StateError, match="other settings"):
        write_runs(path, tmp_path / "out")


def test_the_pooled_bound_has_what_several_sites_share_once(experiment: Write, tmp_path: Path) -> None:
    methods = "[methods.local]\n[methods.centralised]\n"
    local, pooled = write_runs(experiment(methods, replace={'kind = "equal"': 'kind = "resolution"'}), tmp_path / "out")
    assert entries(pooled, "asia")["training"] == entries(local, "asia")["training"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_share = 0.25\n": ""}, "'africa' has no sample for test"),
        ({"test_share = 0.25": "folds = 20"}, r"partitions\.even: africa: 16 of `subject` cannot make 20 folds"),
        (
            {"classes = 2": "classes = 3", "test_share = 0.25": "test_share = 0.25\nclasses_min = 1"},
            "has the label 7, which is none of the 3 classes from 0",
        ),
        ({'kind = "equal"': 'kind = "key"\nkey = "home"'}, "'europe' would train on have one class"),
    ],
)
def test_what_no_site_could_use_is_refused_before_training(
    experiment: Write, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    path = experiment("[methods.local]\n", replace=change)
    pool = read_pool(tmp_path)
    for index, entry in enumerate(pool):
        entry["home"] = ("africa", "asia", "europe")[index // 2 % 3]
        entry["label"] = 1 if entry["home"] == "europe" else entry["label"]
    pool[0]["label"] = 7 if "classes = 2" in change else 0
    write_pool(tmp_path, pool)
    with pytest.raises(DataError, match=message):
        write_runs(path, tmp_path / "out")
    assert not (tmp_path / "out/runs").exists()


def test_an_entrys_own_split_does_not_say_what_is_tested(experiment: Write, tmp_path: Path) -> None:
    path = experiment("[methods.local]\n", replace={"test_share = 0.25\n": ""})
    pool = [{**entry, "split": "val"} for entry in read_pool(tmp_path)]
    write_pool(tmp_path, pool[:24], pool[24:])
    (run,) = write_runs(path, tmp_path / "out")
    tested = [entry["image"] for site in ("africa", "asia", "europe") for entry in entries(run, site)["test"]]
    assert sorted(tested) == sorted(entry["image"] for entry in pool[24:])


@pytest.mark.e2e
def test_data_whose_preparation_was_ended_is_prepared_again(experiment: Write, tmp_path: Path) -> None:
    path = experiment(replace={'pool = "pool/pool.json"': 'dataset = "digits"', "classes = 2": "classes = 10"})
    (tmp_path / "out/data.part/images").mkdir(parents=True)
    assert len(gather(Experiment.load(path), tmp_path / "out/data").entries) == 1797
    assert not (tmp_path / "out/data.part").exists()


def test_a_public_set_needs_its_folder(experiment: Write, tmp_path: Path) -> None:
    path = experiment(replace={'pool = "pool/pool.json"': 'dataset = "derm7pt"'})
    with pytest.raises(DataError, match="derm7pt is not shipped") as refusal:
        write_runs(path, tmp_path / "out")
    assert "--data" in refusal.value.remedy
    loaded = Experiment.load(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError) as refusal:
        gather(loaded, tmp_path / "out" / "data", source=tmp_path / "empty")
    assert "--data" in refusal.value.remedy
