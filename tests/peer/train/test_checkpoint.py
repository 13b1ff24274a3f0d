"""Checkpoints are read back, replaced when partial, and deleted with old rounds."""

from pathlib import Path

import pytest
import torch

from peer.core.limits import CHECKPOINTS_KEPT
from peer.train.checkpoint import Checkpoint, Checkpoints, checkpoint_name
from peer.train.errors import UnusableConfigurationError


def make_checkpoint(value: float, **record: object) -> Checkpoint:
    return Checkpoint(
        record={"work": "w", **record},
        networks={"dam": {"x": torch.full((2,), value)}},
        optimisers={"dam": {"x/exp_avg": torch.full((2,), value / 2)}},
    )


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def rounds(store: Checkpoints) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_what_is_written_is_read_by_another_process_too(store: Checkpoints) -> None:
    name = checkpoint_name(12, "train")
    assert name == "round-000012/train"
    store.write(name, make_checkpoint(3.0, steps=7))
    checkpoint = Checkpoints(store.folder).read(name)
    assert checkpoint.record == {"work": "w", "steps": 7}
    assert checkpoint.networks["dam"]["x"].tolist() == [3.0, 3.0]
    assert checkpoint.optimisers["dam"]["x/exp_avg"].tolist() == [1.5, 1.5]
    assert set(checkpoint.networks) == set(checkpoint.optimisers) == {"dam"}
    assert store.record(name) == checkpoint.record


def test_a_checkpoint_that_is_not_there(store: Checkpoints) -> None:
    assert store.record("round-000001/train") is None
    with pytest.raises(UnusableConfigurationError, match=r"'round-000001/train' is not in .*; restore it"):
        store.read("round-000001/train")


@pytest.mark.parametrize("name", ["../../etc", "round-000001/../../x", "round-000001", "/round-000001/train", ""])
def test_a_name_never_leads_out_of_the_folder(store: Checkpoints, name: str) -> None:
    with pytest.raises(UnusableConfigurationError, match="is no name of a checkpoint"):
        store.read(name)


def test_a_partial_checkpoint_replaces_the_one_before(store: Checkpoints) -> None:
    assert store.read_partial("w") is None
    store.write_partial(5, make_checkpoint(1.0, step=5))
    store.write_partial(12, make_checkpoint(2.0, step=12))
    assert [path.name for path in (store.folder / "partial").iterdir()] == ["step-00000012"]
    checkpoint = store.read_partial("w")
    assert checkpoint.record["step"] == 12
    assert store.read_partial("another stage") is None
    store.clear_partial()
    assert store.read_partial("w") is None


def test_of_two_partial_checkpoints_that_a_crash_left_the_newer_counts(store: Checkpoints) -> None:
    store.write_partial(5, make_checkpoint(1.0, step=5))
    (store.folder / "partial").rename(store.folder / "aside")
    store.write_partial(12, make_checkpoint(2.0, step=12))
    (store.folder / "aside" / "step-00000005").rename(store.folder / "partial" / "step-00000005")
    checkpoint = store.read_partial("w")
    assert checkpoint.record["step"] == 12


def test_old_rounds_go_but_not_the_one_that_is_built_on(store: Checkpoints) -> None:
    for number in range(6):
        store.write(checkpoint_name(number, "train"), make_checkpoint(number))
    store.write(checkpoint_name(5, "distill"), make_checkpoint(5))
    store.prune([checkpoint_name(2, "train")])
    newest = [f"round-{number:06d}" for number in range(6 - CHECKPOINTS_KEPT, 6)]
    assert rounds(store) == ["round-000002", *newest]
    assert store.record(checkpoint_name(5, "distill")) is not None


def test_what_a_crash_left_half_written_goes_at_the_start(store: Checkpoints) -> None:
    half = store.folder / "round-000001" / ".unfinished-train"
    half.mkdir(parents=True)
    (half / "dam.safetensors").touch()
    Checkpoints(store.folder, clean=False)
    assert half.exists()
    again = Checkpoints(store.folder)
    assert not half.exists()
    assert again.record("round-000001/train") is None
