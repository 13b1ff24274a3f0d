import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.datasets import check_full_folder, check_seeds, refuses
from peer.errors import DataError
from peer.lab.datasets import eeg
from peer.train.data.datalist import inspect_datalist

SMALL = eeg.Recordings(
    stem="Small", channels=2, steps=3, rate_hz=1, unit=10.0, normalise="none", classes=("down", "up"),
    persons="nobody", reference="SYNTHETIC",
)  # fmt: skip
HEADER = ("# amplitude in \xb5V", "@problemName Small", "@classLabel true down up", "@data")


def write(path: Path, *cases: str, header: Sequence[str] = HEADER) -> Path:
    """A SYNTHETIC file of recordings, with a byte in its header that is not UTF-8."""
    path.write_text("\n".join([*header, *cases]) + "\n", encoding="latin-1")
    return path


def case(name: str, label: int, value: float = 0.0) -> eeg.Case:
    return eeg.Case(name, np.full((2, 3), value, dtype=np.float32), label)


def test_read_cases_takes_what_is_below_data(tmp_path: Path) -> None:
    path = write(tmp_path / "Small_TRAIN.ts", "1,2,3:-4,5.5,6:up", "", "0,0,0:10,20,30:down")
    first, second = eeg.read_cases(path, SMALL)
    assert (first.name, first.label, second.name, second.label) == ("train-000", 1, "train-001", 0)
    assert first.signals.dtype == np.float32
    np.testing.assert_allclose(first.signals, [[0.1, 0.2, 0.3], [-0.4, 0.55, 0.6]], rtol=1e-6)
    np.testing.assert_array_equal(second.signals, [[0, 0, 0], [1, 2, 3]])


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        ("1,2,3:4,5,6:left", "the label 'left' is none of down, up"),
        ("1,2,3:up", "holds 1 channels of 3 values, not 2 of 3"),
        ("1,2,3:4,5:up", "holds 2 channels of 2 or 3 values, not 2 of 3"),
        ("1,2,3:4,5,?:up", "could not convert string to float: '?'"),
        ("1,2,3:4,5,nan:up", "holds a NaN or an infinity"),
        ("up", "holds 0 channels of"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path: Path, damaged: str, problem: str) -> None:
    path = write(tmp_path / "Small_TEST.ts", "1,2,3:4,5,6:up", damaged)
    with pytest.raises(DataError) as raised:
        eeg.read_cases(path, SMALL)
    assert str(raised.value).startswith(f"{path}, line 6: {problem}")
    assert str(raised.value).endswith("install the version that requirements/data.txt pins")


def test_a_file_without_cases_and_one_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "Small_TEST.ts", "1,2,3:4,5,6:up", header=HEADER[:-1])
    with pytest.raises(DataError, match="holds no case after a line @data"):
        eeg.read_cases(path, SMALL)
    with pytest.raises(DataError, match=r"absent\.ts cannot be read: No such file"):
        eeg.read_cases(tmp_path / "absent.ts", SMALL)


def test_no_case_is_trained_on_twice_or_tested_on_too() -> None:
    training = [case("a", 0, 1), case("b", 0, 2), case("c", 1, 1), case("d", 1, 3), case("e", 1, 3)]
    assert [unique.name for unique in eeg.without_repeats(training, [case("t", 0, 2)])] == ["a", "d"]


@pytest.mark.parametrize("seed", range(10))
def test_training_is_skewed_as_the_draw_says_and_no_site_lacks_a_class(seed: int) -> None:
    cases = [case(f"{index:03d}", int(index >= 120)) for index in range(300)]
    assigned = eeg.assign_to_sites(cases, seed=seed, skewed=True)
    assert list(assigned) == ["africa", "america", "asia", "europe"]
    assert sorted(item.name for own in assigned.values() for item in own) == [item.name for item in cases]
    for label, total in ((0, 120), (1, 180)):
        shares = eeg.dirichlet(seed=seed, purpose=f"class {label}")
        counts = [sum(item.label == label for item in own) for own in assigned.values()]
        assert min(counts) >= 8
        np.testing.assert_allclose(counts, 8 + (total - 32) * np.array(shares), atol=1)


def test_test_cases_are_dealt_out_evenly() -> None:
    cases = [case(f"{index:03d}", int(index >= 41)) for index in range(100)]
    assigned = eeg.assign_to_sites(cases, seed=0, skewed=False)
    assert sum(map(len, assigned.values())) == 100
    for own in assigned.values():
        counts = Counter(item.label for item in own)
        assert counts[0] in (10, 11)
        assert counts[1] in (14, 15)


def test_the_draw_is_known_and_flat_dirichlet() -> None:
    np.testing.assert_allclose(eeg.dirichlet(seed=0, purpose="class 0"), [0.1004, 0.0857, 0.5962, 0.2177], atol=5e-5)
    draws = np.array([eeg.dirichlet(seed=seed, purpose="x") for seed in range(4000)])
    np.testing.assert_allclose(draws.sum(axis=1), 1)
    np.testing.assert_allclose(draws.mean(axis=0), 1 / 4, atol=0.01)
    np.testing.assert_allclose(draws.var(axis=0), 3 / 80, atol=0.003)


def test_a_floor_has_the_sign_that_fits_training() -> None:
    falling = [case("a", 0, 5), case("b", 1, -5)]
    tests = [case("c", 0, 4), case("d", 1, -3), case("e", 1, 6)]
    aucs = eeg.recording_baselines({"here": {"training": falling, "test": tests}})
    assert aucs["mean"] == {"here": 0.5, "pooled": 0.5}
    assert eeg.recording_baselines({"here": {"training": falling, "test": tests[:2]}})["mean"]["here"] == 1.0
    assert aucs["power"]["here"] == 0.5  # constant signals have none


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SYNTHETIC blinks: constant signals, 50 of each class in training and 8 in the test file."""
    source = tmp_path_factory.mktemp("synthetic")
    for end, count, start in (("TRAIN", 50, 0), ("TEST", 8, 900)):
        lines = []
        for index in range(2 * count):
            values = ",".join([str(start + index)] * 510)
            lines.append(":".join([values] * 4 + ["LongBlink" if index % 2 else "ShortBlink"]))
        write(source / f"Blink_{end}.ts", *lines)
    return source


def test_a_seed_gives_the_same_bytes_and_a_folder_that_is_not_empty_stays(small: Path, tmp_path: Path) -> None:
    prepare = partial(eeg.prepare, recordings="blink", source=small)
    check_seeds(prepare, tmp_path)
    check_full_folder(prepare, tmp_path)


def test_prepare_writes_what_its_summary_says(small: Path, tmp_path: Path) -> None:
    summary = eeg.prepare(tmp_path / "out", recordings="blink", source=small)
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["recordings"] == "Blink"
    assert summary["normalise"] == "zscore"
    seen: list[float] = []
    for site, splits in summary["sites"].items():
        listed = inspect_datalist(tmp_path / "out" / site / "datalist.json", task="time_series", classes=2)
        assert not listed.problems
        for split, samples in (("training", listed.training), ("test", listed.test)):
            assert splits[split]["cases"] == len(samples)
            assert splits[split]["classes"] == {
                name: listed.counts(split)[label] for label, name in enumerate(("LongBlink", "ShortBlink"))
            }
            for sample in samples:
                signals = np.load(sample.images[0])
                assert (signals.shape, signals.dtype) == ((4, 510), np.float32)
                value = float(signals[0, 0])
                assert sample.label == int(value % 2 == 0)
                assert (split == "test") == (value >= 900)
                seen.append(value)
    assert sorted(seen) == [*range(100), *range(900, 916)]


def test_too_few_cases_for_four_sites_are_refused(tmp_path: Path) -> None:
    lines = [":".join([",".join([str(index)] * 510)] * 4 + ["LongBlink"]) for index in range(40)]
    for end in ("TRAIN", "TEST"):
        write(tmp_path / f"Blink_{end}.ts", *lines[: 40 if end == "TRAIN" else 1])
    refuses(eeg, tmp_path, r"Blink_TRAIN\.ts holds too few cases of a class for 4 sites", recordings="blink")


@pytest.mark.data
@pytest.mark.parametrize(
    ("recordings", "shape", "training", "test", "repeated", "mean_auc"),
    [
        ("scp1", (6, 896), [135, 133], [147, 146], 0, 0.929),
        ("blink", (4, 510), [250, 150], [200, 250], 100, 0.476),
    ],
)
def test_the_real_sets_are_at_four_sites_that_differ(
    tmp_path: Path, recordings: str, shape: tuple[int, int], training: Any, test: Any, repeated: int, mean_auc: float
) -> None:
    summary = eeg.prepare(tmp_path / "out", recordings=recordings)
    assert summary["dropped"] == {"repeated": repeated}
    totals = {split: [0, 0] for split in ("training", "test")}
    names: dict[bytes, str] = {}
    shares = []
    for site in eeg.SITES:
        listed = inspect_datalist(tmp_path / "out" / site / "datalist.json", task="time_series", classes=2)
        assert not listed.problems
        for split in totals:
            counts = listed.counts(split)
            totals[split] = [total + counts[label] for label, total in enumerate(totals[split])]
        own = listed.counts("training")
        shares.append(own[1] / (own[0] + own[1]))
        for sample in (*listed.training, *listed.test):
            signals = np.load(sample.images[0])
            assert signals.shape == shape
            assert np.isfinite(signals).all()
            assert names.setdefault(signals.tobytes(), sample.name) == sample.name
    assert totals == {"training": training, "test": test}
    assert max(shares) - min(shares) > 0.3
    # The mean alone tells the classes of scp1 apart, and not those of blink: what the two say under
    # "normalise".
    assert summary["floors"]["mean"]["pooled"] == pytest.approx(mean_auc, abs=0.001)
