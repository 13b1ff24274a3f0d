"""The model card: its facts, its text, and the settings for a prediction."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.json_documents import change_documents
from peer.train.data.datalist import inspect_datalist
from peer.train.inference.export import graph, model_card, monai_bundle


@pytest.fixture
def card_facts(make_hospital: Callable[[str], Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The card of a site without test samples of class 1."""
    hospital = make_hospital("time_series")
    for datalist in change_documents(hospital.data, "datalist.json"):
        datalist["test"] = [entry for entry in datalist["test"] if entry["label"] == 0]
    settings = hospital.trainer().settings
    known = model_card.collect_facts(
        {**facts, "form": "onnx", "samples": {"training": 8, "validation": 2, "unreadable": 0}},
        settings,
        inspect_datalist(settings.data.datalist, task="time_series"),
    )
    check = {"what": "a beside b", "difference": 1.25e-7, "tolerance": 1e-4, "samples": 4, "source": "test samples"}
    more = {"network": {"network": {"name": "resnet10"}}, "parameters": 7298, "output": "probabilities"}
    return {**known, **more, "checks": [check]}


def test_the_facts_count_samples_a_class(card_facts: dict[str, Any]) -> None:
    assert card_facts["data"] == {
        "training": {"samples": 10, "classes": {"0": 5, "1": 5}, "subjects": 10},
        "test": {"samples": 3, "classes": {"0": 3}, "subjects": 3},
    }
    assert {"python", "torch", "monai", "mhfl-peer"} <= card_facts["versions"].keys()


def test_the_text_tells_them_all(card_facts: dict[str, Any]) -> None:
    text = model_card.render_markdown(card_facts)
    for sentence in (
        "# Model of alpha, test, round 1",
        "Exported by: site alpha\n",
        "Exported: 2026-11-22T10:00:00+00:00, as onnx",
        f"Egress ledger of the site before this export: 4 rows, head `{'cd' * 32}`",
        f"digest `{'ab' * 32}`",
        "1 of 3 finished, generation 1",
        "7298 parameters",
        "Licence: CC-BY-4.0",
        "Resize to 24: first average",
        "subtract the mean and divide by the standard deviation",
        "Round 1: contributors alpha; missing beta",
        "In use, those held out for validation apart: training 8, validation 2",
        f"SHA-256 `{card_facts['datalist_sha256']}`",
        "training: 10 samples of 10 subjects; class 0: 5; class 1: 5",
        "after round 1: AUC 0.5",
        "a beside b: largest absolute difference 1.25e-07, tolerance 0.0001, on 4 test samples",
        "It is not a medical device",
        "Weights can reveal",
    ):
        assert sentence in text, sentence
    assert "Left out" not in text
    card_facts["contact"] = "radiology, ext. 12"
    assert "Exported by: site alpha; contact: radiology, ext. 12\n" in model_card.render_markdown(card_facts)


def test_classes_have_the_names_of_the_federation(card_facts: dict[str, Any], tmp_path: Path) -> None:
    card_facts["task"]["class_names"] = ["long", "short"]
    assert "class 0 (long): 5; class 1 (short): 5" in model_card.render_markdown(card_facts)
    _, settings = model_card.read(json.dumps(card_facts), tmp_path / "model.onnx")
    assert settings.task.class_names == ("long", "short")
    assert json.loads(graph._texts(card_facts)["class_names"]) == ["long", "short"]
    metadata = monai_bundle._metadata({**card_facts, "versions": defaultdict(str)})
    assert metadata["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "long", "1": "short"}


def test_reduced_precision_of_the_site_is_told(card_facts: dict[str, Any]) -> None:
    sentence = "It computes in float32; the site itself trains and predicts in bf16."
    assert sentence in model_card.render_markdown({**card_facts, "precision": "bf16"})
    assert sentence not in model_card.render_markdown(card_facts)


def test_who_was_left_out_is_named_and_what_that_means(card_facts: dict[str, Any]) -> None:
    left_out = {**card_facts, "left_out": {"beta": "its manifest does not say reexport = true"}}
    text = model_card.render_markdown(left_out)
    assert "- Left out: the network of beta, which the site itself predicts with: its manifest does not say" in text
    assert "this is the local expert alone, not the mixture that the site predicts with" in text
    some = {**left_out, "network": {**card_facts["network"], "experts": {"gamma": {}}}}
    text = model_card.render_markdown({**some, "metrics": {**card_facts["metrics"], "exported": {"auc": 0.25}}})
    assert "Networks of other sites inside, whose manifests allow it: gamma" in text
    assert "the local expert alone" not in text
    assert "This export, on the same split: AUC 0.25" in text


def test_a_bundle_says_what_it_takes_to_load_it(card_facts: dict[str, Any]) -> None:
    bundle = {**card_facts, "form": "bundle", "definition": "monai.networks.nets.UNet"}
    assert "Nothing but MONAI is needed" in model_card.render_markdown(bundle)
    assert "python -m monai.bundle run --config_file configs/inference.json" in model_card.render_markdown(bundle)
    assert "takes the package mhfl-peer" in model_card.render_markdown({**bundle, "definition": "peer.train.build"})


def test_a_prediction_reads_task_and_preparation(card_facts: dict[str, Any], tmp_path: Path) -> None:
    card, settings = model_card.read(json.dumps(card_facts), tmp_path / "model.onnx")
    assert card == card_facts
    assert (settings.task.kind, settings.task.in_channels) == ("time_series", 2)
    assert (settings.data.input_size, settings.data.normalise, settings.data.scale) == ((24,), "zscore", None)
