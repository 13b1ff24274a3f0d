"""LC-Fed's rounds: body and selection are averaged, heads are kept, and each site's calibration stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peer.core import commands, events
from peer.core.roster import SiteName
from peer.core.worker_protocol import WorkerSetting

SITES = ("alpha", "beta", "gamma")
UNET = {"name": "unet", "width": 4, "depth": 1}


@pytest.fixture
def segmented(sites: Any, signals: Path, make_setting: Callable[..., WorkerSetting]) -> Any:
    """Three sites that segment the signals' positive half-waves."""
    document = json.loads((signals / "datalist.json").read_text())
    for item in (item for items in document.values() for item in items):
        name = f"mask-{item['image']}.npy".replace(".npz", "")
        np.save(signals / name, (np.load(signals / item["image"])["image"][0] > 0).astype(np.uint8))
        item["label"] = name
    (signals / "masks.json").write_text(json.dumps(document))
    return sites(
        "lc_fed",
        models={site: {"name": "unet", "parameters": {"width": 4, "depth": 1}} for site in SITES},
        shared_model=UNET,
        roster=SITES,
        parameters={"window": 5},
        task={"kind": "segmentation"},
        data={"datalist": "masks.json"},
    )


def test_rounds_average_the_body_and_keep_the_newest_head_of_each_site(segmented: Any) -> None:
    segmented.round(1)
    first = {site: segmented.artifact_state(site) for site in SITES}
    segmented.events.clear()
    segmented.round(2, lost=frozenset({("beta", "alpha")}))
    second = {site: segmented.artifact_state(site) for site in SITES}
    head = f"{segmented.trainers['alpha'].site_networks.dam.head_name}."
    for site in SITES:
        own, selection = segmented.state_of(site, "dam"), segmented.state_of(site, "selection")
        assert {name for name in second[site] if "/" in name} == {f"selection/{name}" for name in selection}
        contributors = [name for name in SITES if (name, site) != ("beta", "alpha")]
        mean = own | {f"selection/{name}": tensor for name, tensor in selection.items()}
        for name, tensor in second[site].items():
            if name.startswith(head):
                assert torch.equal(own[name], tensor), "the own head is no average"
            elif tensor.is_floating_point():
                expected = torch.stack([second[each][name].double() for each in contributors]).mean(0)
                assert torch.equal(mean[name], expected.to(tensor.dtype)), name
    heads = segmented.state_of("alpha", "heads")
    assert heads["present"].tolist() == [0, 1, 1]
    for name in ("weight", "bias"):
        expected_heads = (first["beta"][head + name], second["gamma"][head + name])
        assert all(torch.equal(heads[f"head/{name}"][1 + index], kept) for index, kept in enumerate(expected_heads))
    averaged = [event for event in segmented.events if isinstance(event, events.Aggregated)]
    assert averaged[0].sha256 != averaged[1].sha256 == averaged[2].sha256


def test_a_site_goes_on_from_disk_rehearses_and_evaluates_as_it_is(segmented: Any) -> None:
    segmented.round(1)
    metrics = {site: segmented.evaluated(site) for site in SITES}
    assert all("dice" in scores for scores in metrics.values()), metrics
    calibrations = [segmented.state_of(site, "calibration")["head.weight"] for site in SITES]
    assert not torch.equal(calibrations[0], calibrations[1])
    segmented.restart()
    assert {site: segmented.evaluated(site) for site in SITES} == metrics
    for site, calibration in zip(SITES, calibrations, strict=True):
        assert torch.equal(segmented.state_of(site, "calibration")["head.weight"], calibration)
    event = segmented.trainers["beta"].perform(commands.Rehearse(1, 2, (SiteName("alpha"), SiteName("gamma"))))
    assert set(event.step_s) == {"head", "body", "calibrate"}
