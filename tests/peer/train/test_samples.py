"""A site's data: refused datalists, skipped samples, batches that depend on their step alone."""

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.rank_threads import run_ranks
from peer.core.plan import Work
from peer.core.seeds import derive
from peer.files import UNFINISHED
from peer.methods.method import Batch
from peer.site.config.site_tables import AugmentationConfig, DataConfig
from peer.train.data.datalist import Sample
from peer.train.errors import UnusableDataError, WorkInterrupted
from peer.train.images import Preparation
from peer.train.ranks import Ranks
from peer.train.samples import Batches, SiteData, load_data, site_seed, validation_names
from peer.train.settings import AugmentationSettings, DataSettings, TrainingSettings
from peer.train.targets import Example
from tests.fakes import phantoms

NONE = AugmentationSettings(0, 0, 0, 0, 0)
USUAL = AugmentationSettings.of(AugmentationConfig(), 2)


def go_on() -> None:
    """Nobody wants the reading to end."""


def loaded(settings: TrainingSettings) -> SiteData:
    return load_data(settings, site_seed(settings), check_halt=go_on)


def edit(signals: Path, **splits: list[dict[str, Any]]) -> None:
    path = signals / "datalist.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **splits}))


def batches(data: SiteData, *, seed: int = 0, **options: Any) -> Batches:
    options = {"batch_size": 4, "augmentation": NONE, "device": torch.device("cpu"), **options}
    return Batches(data, seed=lambda *parts: derive(seed, *parts), **options)


@pytest.mark.parametrize("cache", ["memory", "disk", "none"])
def test_every_cache_gives_the_same_images(make_setting, signals: Path, cache: str) -> None:
    settings = TrainingSettings.of(make_setting(data={"cache": cache, "normalise": "zscore"}))
    for data in (loaded(settings), loaded(settings)):  # the second time from the cache
        assert data.counts == {"training": 10, "test": 6, "unreadable": 0}
        images, labels = data.training.read([3, 0])
        expected = Preparation(2, (24,), "zscore")([signals / "training3.npz"])
        assert torch.equal(images[0], expected)
        assert labels.tolist() == [1, 0]
    assert data.training.in_memory == (cache == "memory")
    assert (settings.home / "cache").exists() == (cache == "disk")


def test_a_file_that_changed_is_not_taken_from_the_disk_cache(make_setting, signals: Path) -> None:
    settings = TrainingSettings.of(make_setting(data={"cache": "disk"}))
    before, _ = loaded(settings).training.load(0)
    np.savez(signals / "training0.npz", image=np.eye(2, 24, dtype=np.float32), note=np.zeros(1))
    after, _ = loaded(settings).training.load(0)
    assert not torch.equal(before, after)
    assert torch.equal(after, torch.eye(2, 24))


def test_unreadable_samples_are_named_and_skipped(
    make_setting, signals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (signals / "training0.npz").write_bytes(b"no archive")
    np.savez(signals / "test1.npz", image=np.full((2, 24), np.nan))
    with caplog.at_level(logging.WARNING):
        data = loaded(TrainingSettings.of(make_setting(data={"unreadable_share_max": 0.2})))
    assert data.counts == {"training": 9, "test": 5, "unreadable": 2}
    assert data.training.samples[0].name == "training1.npz"
    assert torch.equal(data.training.load(0)[0], Preparation(2, (24,))([signals / "training1.npz"]))
    text = caplog.text
    assert "image=training0.npz" in text
    assert "image=test1.npz reason=holds a NaN or an infinity" in text


def test_too_many_unreadable_samples_are_a_fault(make_setting, signals: Path) -> None:
    for index in range(4):
        (signals / f"training{index}.npz").write_bytes(b"")
    settings = TrainingSettings.of(make_setting(data={"unreadable_share_max": 0.2}))
    reason = r"4 of 16 samples cannot be read \(training0.npz, .*unreadable_share_max = 0.2"
    with pytest.raises(UnusableDataError, match=reason):
        loaded(settings)


def test_a_problem_of_the_datalist_is_a_fault(make_setting, signals: Path) -> None:
    edit(signals, test=[{"image": "test0.npz", "label": 0, "subject": "training-3"}])
    with pytest.raises(UnusableDataError, match=r"datalist.json: subjects are in training and in test: training-3"):
        loaded(TrainingSettings.of(make_setting()))


def test_one_class_that_can_be_read_is_not_enough(make_setting, signals: Path) -> None:
    edit(signals, training=[{"image": f"training{k}.npz", "label": int(k == 0)} for k in range(10)])
    (signals / "training0.npz").write_bytes(b"")
    with pytest.raises(UnusableDataError, match="one class only"):
        loaded(TrainingSettings.of(make_setting()))


def test_reading_can_be_ended_between_samples(make_setting) -> None:
    calls = []

    def pulse() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise WorkInterrupted

    settings = TrainingSettings.of(make_setting())
    with pytest.raises(WorkInterrupted):
        load_data(settings, site_seed(settings), check_halt=pulse)


def test_a_sample_that_vanishes_later_is_a_fault(make_setting, signals: Path) -> None:
    data = loaded(TrainingSettings.of(make_setting(data={"cache": "none"})))
    (signals / "training5.npz").unlink()
    with pytest.raises(UnusableDataError, match=r"sample training5.npz was readable and is not now"):
        data.training.read([5])


# --- targets that are files -----------------------------------------------------------------------------------------
DENSE = {
    "segmentation": {"task": {"kind": "segmentation", "spatial_dims": 2, "in_channels": 1, "classes": 3}},
    "super_resolution": {
        "task": {"kind": "super_resolution", "spatial_dims": 2, "in_channels": 1, "classes": 1},
        "data": {"scale": 2},
    },
}


@pytest.fixture(params=DENSE)
def dense(request: pytest.FixtureRequest, make_setting, signals: Path) -> Callable[..., TrainingSettings]:
    """Makes recipes of a dense task over SYNTHETIC planes of 4x6 whose places all differ, and their labels."""
    kind = request.param
    datalist: dict[str, list[dict[str, Any]]] = {}
    for split, count in (("training", 5), ("test", 2)):
        datalist[split] = []
        for index in range(count):
            plane = np.random.default_rng(index).permutation(24).reshape(4, 6)
            label = plane % 3 if kind == "segmentation" else plane.repeat(2, 0).repeat(2, 1) / 24
            np.save(signals / f"{split}{index}.npy", plane / 24)
            np.save(signals / f"{split}{index}-label.npy", label)
            entry = {"image": f"{split}{index}.npy", "label": f"{split}{index}-label.npy", "subject": f"{split}{index}"}
            datalist[split].append(entry)
    edit(signals, **datalist)
    options = DENSE[kind]
    return lambda **data: TrainingSettings.of(
        make_setting(task=options["task"], data={"input_size": [4, 6], **options.get("data", {}), **data})
    )


def expected_target(kind: str, image: torch.Tensor) -> torch.Tensor:
    """The expected target of warped images: each place's value names its origin."""
    if kind == "segmentation":
        return (image[:, 0] * 24).round().long() % 3
    return image.repeat_interleave(2, 2).repeat_interleave(2, 3)


@pytest.mark.parametrize("cache", ["memory", "disk", "none"])
def test_every_cache_gives_the_same_targets(dense: Callable[..., TrainingSettings], cache: str) -> None:
    settings = dense(cache=cache)
    for data in (loaded(settings), loaded(settings)):
        assert data.counts == {"training": 5, "test": 2, "unreadable": 0}
        images, targets = data.training.read([4, 0])
        expected = expected_target(settings.task.kind, images)
        assert targets.dtype == expected.dtype
        assert torch.allclose(targets, expected)
        _, all_targets = data.training.read(range(5))
        places = {label: int((all_targets == label).sum()) for label in range(3)}
        assert data.training.class_counts == (places if settings.task.kind == "segmentation" else {})
        assert data.task == settings.task.kind


def test_a_label_file_that_changed_is_not_taken_from_the_disk_cache(dense, signals: Path) -> None:
    settings = dense(cache="disk")
    _, before = loaded(settings).training.load(0)
    np.save(signals / "training0-label.npy", np.zeros((4, 6) if before.ndim == 2 else (8, 12)))
    _, after = loaded(settings).training.load(0)
    assert before.count_nonzero() > 0
    assert after.count_nonzero() == 0


def test_an_unreadable_label_is_an_unreadable_sample(dense, signals: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(signals / "training3-label.npy", np.full((4, 6), 7.0))
    with caplog.at_level(logging.WARNING):
        data = loaded(dense(unreadable_share_max=0.2))
    assert data.counts == {"training": 4, "test": 2, "unreadable": 1}
    assert [sample.name for sample in data.training.samples] == [f"training{k}.npy" for k in (0, 1, 2, 4)]
    images, targets = data.training.read([3])
    assert torch.allclose(targets, expected_target(data.task, images))
    assert "image=training3.npy reason=" in caplog.text
    assert re.search("label map holds the value 7;|holds values from 7 to 7;", caplog.text)


def test_the_augmentation_moves_a_target_with_its_image(dense: Callable[..., TrainingSettings]) -> None:
    data = loaded(dense())
    straight = batches(data, batch_size=5)[2].images
    flipped = batches(data, batch_size=5, augmentation=AugmentationSettings(0.5, 0, 0, 0, 0))[2]
    assert not torch.allclose(flipped.images, straight)
    assert torch.allclose(flipped.targets, expected_target(data.task, flipped.images))


@pytest.mark.parametrize("dense", ["segmentation"], indirect=True)
def test_a_label_map_is_turned_and_shifted_too(dense: Callable[..., TrainingSettings], signals: Path) -> None:
    for index in range(5):  # a ramp whose label is its rounded height: interpolated or not, both stay together
        ramp = np.linspace(0, 2, 40)[:, None] + np.zeros((1, 60))
        np.save(signals / f"training{index}.npy", ramp)
        np.save(signals / f"training{index}-label.npy", ramp.round())
    data = loaded(dense(input_size=[40, 60]))
    batch = batches(data, augmentation=AugmentationSettings(0.5, 40, 0.2, 0.1, 1))[0]
    assert batch.targets.dtype == torch.int64
    assert not torch.equal(batch.targets, data.training.read(batches(data).indices(0))[1])
    agreeing = batch.targets == batch.images[:, 0].round()
    assert agreeing.float().mean() > 0.95  # all but the places beside an edge between two labels
    assert batch.targets.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("dense", ["super_resolution"], indirect=True)
def test_super_resolution_is_only_flipped(dense: Callable[..., TrainingSettings]) -> None:
    data = loaded(dense())
    batch = batches(data, batch_size=5, augmentation=AugmentationSettings(0.5, 90, 0.5, 0.5, 1))[1]
    originals, _ = data.training.read(batches(data, batch_size=5).indices(1))
    for image, original in zip(batch.images, originals, strict=True):
        flips = [original, original.flip(1), original.flip(2), original.flip(1, 2)]
        assert any(torch.equal(image, flip) for flip in flips)  # to the bit
    assert torch.allclose(batch.targets, expected_target(data.task, batch.images))


def test_held_out_subjects_of_label_files_are_drawn_together(dense: Callable[..., TrainingSettings]) -> None:
    data = loaded(dense(validation_share=0.4))
    assert data.counts == {"training": 3, "validation": 2, "test": 2, "unreadable": 0}


@pytest.mark.parametrize("dense", ["segmentation"], indirect=True)
def test_label_maps_without_foreground_teach_nothing(dense: Callable[..., TrainingSettings], signals: Path) -> None:
    for index in range(5):
        np.save(signals / f"training{index}-label.npy", np.zeros((4, 6)))
    with pytest.raises(UnusableDataError, match=r"datalist.json: what can be read for training has no foreground"):
        loaded(dense())


@pytest.mark.parametrize("dense", ["segmentation"], indirect=True)
def test_an_image_without_its_label_map_is_a_fault(dense: Callable[..., TrainingSettings], signals: Path) -> None:
    edit(signals, training=[{"image": "training0.npy"}])
    with pytest.raises(UnusableDataError, match=r"'label' of training0\.npy must be a path, not None"):
        loaded(dense())


@pytest.mark.parametrize("dense", ["super_resolution"], indirect=True)
def test_an_image_without_a_label_is_its_own_target(dense: Callable[..., TrainingSettings], signals: Path) -> None:
    edit(signals, training=[{"image": "training0.npy"}, {"image": "training1.npy"}], test=["test0.npy"])
    data = loaded(dense(input_size=[2, 3]))
    assert data.counts == {"training": 2, "test": 1, "unreadable": 0}
    images, targets = data.training.read([1])
    assert torch.equal(targets[0, 0], torch.from_numpy(np.load(signals / "training1.npy")).float())
    assert torch.allclose(images, torch.nn.functional.avg_pool2d(targets, 2))


def test_nothing_to_train_on_is_a_fault(dense: Callable[..., TrainingSettings], signals: Path) -> None:
    for index in range(5):
        (signals / f"training{index}-label.npy").write_bytes(b"")
    with pytest.raises(UnusableDataError, match=r"for training (is nothing|has no foreground)"):
        loaded(dense(unreadable_share_max=1.0))


# --- validation -----------------------------------------------------------------------------------------------------
def test_validation_takes_whole_subjects_of_each_class() -> None:
    samples = [Sample(f"{subject}-{k}", (), subject % 2, f"s{subject}") for subject in range(20) for k in range(3)]
    names = validation_names(samples, 0.3, lambda *parts: derive(1, *parts))
    held_out = [sample for sample in samples if sample.name in names]
    assert Counter(sample.label for sample in held_out) == {0: 9, 1: 9}
    assert all(count == 3 for count in Counter(sample.subject for sample in held_out).values())
    assert names == validation_names(samples[::-1], 0.3, lambda *parts: derive(1, *parts))
    assert names != validation_names(samples, 0.3, lambda *parts: derive(2, *parts))
    assert validation_names(samples, 0.0, lambda *parts: derive(1, *parts)) == set()


def test_validation_knows_no_classes_of_label_files() -> None:
    samples = [Sample(str(k), (), Path(f"{k}.npy"), f"s{k // 2}") for k in range(20)]
    names = validation_names(samples, 0.3, lambda *parts: derive(1, *parts))
    assert len(names) == 6
    assert len({sample.subject for sample in samples if sample.name in names}) == 3


def test_validation_samples_are_not_trained_on(make_setting) -> None:
    data = loaded(TrainingSettings.of(make_setting(data={"validation_share": 0.4})))
    assert data.counts == {"training": 6, "validation": 4, "test": 6, "unreadable": 0}
    assert not {s.name for s in data.training.samples} & {s.name for s in data.validation.samples}


# --- batches --------------------------------------------------------------------------------------------------------
@pytest.fixture
def data(make_setting) -> SiteData:
    return loaded(TrainingSettings.of(make_setting()))


def test_an_epoch_sees_no_sample_twice_and_drops_the_rest(data: SiteData) -> None:
    stream = batches(data)
    assert stream.per_epoch == 2
    first = stream.indices(0) + stream.indices(1)
    assert len(set(first)) == 8
    assert stream.indices(2) + stream.indices(3) != first
    assert stream.indices(0) == batches(data).indices(0)
    assert stream.indices(0) != batches(data, seed=1).indices(0)


@pytest.mark.parametrize("batch_size", [4, 64])
def test_balanced_batches_have_each_class_equally_often(make_setting, signals: Path, batch_size: int) -> None:
    edit(signals, training=[{"image": f"training{k}.npz", "label": int(k in (2, 7))} for k in range(10)])
    uneven = loaded(TrainingSettings.of(make_setting()))
    stream = batches(uneven, batch_size=batch_size, balanced=True)
    assert stream.per_epoch == batches(uneven, batch_size=batch_size).per_epoch
    steps = [stream.indices(step) for step in range(2 * stream.per_epoch)]
    for indices in steps:
        assert sum(index in (2, 7) for index in indices) == len(indices) // 2
    seen = [index for indices in steps for index in indices]
    assert set(seen) >= {2, 7}
    large = [index for index in seen[: len(seen) // 2] if index not in (2, 7)]
    assert len(set(large)) == len(large), "in a pass no sample of the large class comes twice"
    assert stream.indices(1) == batches(uneven, batch_size=batch_size, balanced=True).indices(1)
    assert stream.indices(1) != batches(uneven, batch_size=batch_size, balanced=True, seed=1).indices(1)


@pytest.mark.parametrize(("batch_size", "have_all"), [(2, False), (3, True), (4, False), (6, True), (7, True)])
def test_balanced_batches_have_all_classes_by_their_size(
    make_setting, signals: Path, batch_size: int, have_all: bool
) -> None:
    edit(signals, training=[{"image": f"training{k}.npz", "label": k % 3} for k in range(10)])
    data = loaded(TrainingSettings.of(make_setting(task={"classes": 3})))
    stream = batches(data, batch_size=batch_size, balanced=True)
    contents = [{index % 3 for index in stream.indices(step)} for step in range(20)]
    assert all(len(classes) == 3 for classes in contents) == have_all


def test_few_samples_are_one_full_batch(data: SiteData) -> None:
    stream = batches(data, batch_size=64)
    assert (stream.per_epoch, sorted(stream.indices(3))) == (1, list(range(10)))


def test_steps_of_work_in_steps_and_in_epochs(data: SiteData) -> None:
    assert batches(data).steps(Work("step", 7, 0.1)) == 7
    assert batches(data).steps(Work("epoch", 7, 0.1)) == 14


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_a_batch_does_not_depend_on_what_was_asked_before(make_setting, cache: str) -> None:
    data = loaded(TrainingSettings.of(make_setting(data={"cache": cache})))
    straight, late = (batches(data, augmentation=USUAL) for _ in range(2))
    for step in range(4):
        batch = straight[step]
    alone = late[3]
    assert torch.equal(alone.images, batch.images)
    assert torch.equal(alone.targets, batch.targets)
    straight.close()
    late.close()


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_ranks_read_shares_and_get_the_batches_of_one_process(make_setting, cache: str) -> None:
    """Seven samples are four and three; the augmentation is drawn for each sample, and masks follow it."""
    data = loaded(TrainingSettings.of(make_setting(data={"cache": cache})))
    data = replace(data, masks=torch.rand(2, 24, generator=torch.Generator().manual_seed(0)))
    read: dict[int, list[int]] = {0: [], 1: []}
    options: dict[str, Any] = {"batch_size": 7, "augmentation": USUAL}

    def read_at(ranks: Ranks) -> list[Batch]:
        def load(index: int) -> Any:
            read[ranks.rank].append(index)
            return data.training.load(index)

        stream = batches(replace(data, training=replace(data.training, load=load)), ranks=ranks, **options)
        joint = [stream[step] for step in range(2)]
        stream.close()
        return joint

    alone = batches(data, **options)
    expected = [alone[step] for step in range(2)]
    for joint in run_ranks(2, read_at):
        for batch, one in zip(joint, expected, strict=True):
            torch.testing.assert_close(batch.images, one.images)
            torch.testing.assert_close(batch.masks, one.masks)
            assert torch.equal(batch.targets, one.targets)
    for step in range(2):
        indices = alone.indices(step)
        assert set(read[0]) >= set(indices[:4])
        assert set(read[1]) >= set(indices[4:])
    if cache == "memory":  # nothing is read ahead
        assert (len(read[0]), len(read[1])) == (8, 6)
    alone.close()


def test_a_process_that_only_trains_reads_no_other_samples_and_cleans_up_nothing(make_setting) -> None:
    settings = TrainingSettings.of(make_setting(data={"cache": "disk", "validation_share": 0.4}))
    whole = loaded(settings)
    unfinished = settings.home / "cache" / f"{UNFINISHED}of-another-process"
    unfinished.touch()
    data = load_data(settings, site_seed(settings), check_halt=go_on, training_only=True)
    assert data.counts == {"training": len(whole.training), "test": 0, "unreadable": 0}
    assert data.training.digest == whole.training.digest != whole.validation.digest
    assert unfinished.exists()
    loaded(settings)
    assert not unfinished.exists()


@pytest.mark.parametrize("readers", [1, 3])
def test_readers_read_the_steps_ahead_while_one_trains(make_setting, readers: int) -> None:
    data = loaded(TrainingSettings.of(make_setting(data={"cache": "none"})))
    read, all_ahead = list[int](), threading.Event()

    def load(index: int) -> Example:
        example = data.training.load(index)
        read.append(index)
        if len(read) == 12:
            all_ahead.set()
        return example

    split = replace(data.training, load=load)
    stream, plain = batches(replace(data, training=split), readers=readers), batches(data)
    first = stream[0]
    assert all_ahead.wait(60), "the two steps after the first are read without being asked for"
    assert sorted(read) == sorted(index for step in range(3) for index in plain.indices(step))
    assert torch.equal(first.images, plain[0].images)
    for step in (1, 2, 5, 4):  # a stage may repeat a step
        assert torch.equal(stream[step].images, plain[step].images)
    assert stream.waited_s > 0
    stream.close()
    plain.close()


def test_targets_belong_to_their_images(data: SiteData) -> None:
    batch = batches(data)[5]
    images, labels = data.training.read(batches(data).indices(5))
    assert torch.equal(batch.images, images)
    assert torch.equal(batch.targets, labels)
    assert batch.masks is None


def test_masks_are_shared_until_images_move(data: SiteData) -> None:
    masks = torch.zeros(2, 24)
    masks[0, :12], masks[1, 12:] = 1, 1
    masked = SiteData(data.training, data.validation, data.test, 0, masks, data.task)
    assert torch.equal(batches(masked)[0].masks, masks)
    flipped = batches(masked, augmentation=AugmentationSettings(1, 0, 0, 0, 0))[0].masks
    assert flipped.shape == (4, 2, 12)
    assert torch.allclose(flipped[0, 0, 6:], torch.ones(6), atol=1e-5)
    assert torch.allclose(flipped[0, 0, :6], torch.zeros(6), atol=1e-5)


def test_volumes_of_several_orientations_are_refused_unless_the_key_says_how(make_setting, tmp_path: Path) -> None:
    items = []
    for index, codes in enumerate(["RAS", "RAS", "LAS", "RAS"]):
        phantoms.nifti(tmp_path / f"{index}.nii", codes)
        items.append({"image": f"{index}.nii", "label": index % 2})
    (tmp_path / "datalist.json").write_text(json.dumps({"training": items}))
    setting = make_setting(task={"kind": "classification", "spatial_dims": 3, "in_channels": 1})

    def load(**changes: str) -> SiteData:
        data = DataSettings.of(DataConfig(input_size=(5, 3, 4), **changes), tmp_path)
        return loaded(replace(TrainingSettings.of(setting), data=data))

    with pytest.raises(UnusableDataError, match=r'RAS \(3 files\), but 2.nii LAS; set \[data\] orientation = "RAS"'):
        load()
    load(orientation="stored")
    turned = load(orientation="RAS")
    assert all(np.array_equal(turned.training.load(k)[0][0].numpy(), phantoms.PHANTOM) for k in range(4))
