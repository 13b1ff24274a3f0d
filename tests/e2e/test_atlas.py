"""FedSKD with the regions of a real atlas on ABIDE-shaped maps: real rs-fMRI signals, synthetic labels."""

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import draft, site_text, task
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.data, pytest.mark.timeout(600)]

SITES = {"central-us": 5, "east-us": 4, "europe": 7, "west-us": 6}
TRAINING = {"device": "cpu", "batch_size": 4}
METHOD = {"name": "fedskd", "gamma": 10.0}
TABLES = {"stages": {"train": {"count": 2}}, "schedule": {"kind": "ring"}, "pace": {"linger_s": 20}}
DRAFT = draft("abide-shaped", task=task(3, in_channels=4), method=METHOD, **TABLES)


def site_of(folder: Path, width: int) -> str:
    files = {"datalist": folder / "datalist.json", "regions": str(folder / "regions.nii.gz")}
    model = {"name": "resnet10", "parameters": {"width": width, "stem_stride": 2}}
    return site_text(48, 48, 48, model=model, training=TRAINING, **files)


@pytest.mark.nightly
def test_region_similarity_trains_over_the_wire_with_116_aal_regions(tmp_path: Path, tools: Any) -> None:
    from peer.lab.datasets import atlas

    summary = atlas.prepare(tmp_path / "data")
    assert "synthetic" in json.dumps(summary).lower()
    sites = {name: site_of(tmp_path / "data" / name, width) for name, width in SITES.items()}
    with LocalFederation.create(tmp_path / "federation", DRAFT, sites) as loopback:
        tools.start(loopback, sites)
        tools.finish_well(loopback)
    for name in sites:
        records = tools.records(loopback, name)
        assert [record["round"] for record in records] == [1, 2, 3]
        for record in records:
            assert len(record["sources"]) == 1
            assert 0 < record["metrics"]["train_region"] < 4
            assert record["missing"] == {}
        assert records[-1]["metrics"]["samples"] == summary["sites"][name]["test"]["maps"]
