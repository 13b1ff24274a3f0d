"""`prune` lists and deletes what no round needs, and never what only this folder has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.trained_site import TrainedSite
from peer.audit.pruning import OldPath, delete, find_old
from peer.errors import DiskError

NOW_S = 2_000_000_000.0


@pytest.fixture
def site(tmp_path: Path) -> TrainedSite:
    """A former generation with one round, and the newest one with three, a stray, prepared images and a log."""
    site = TrainedSite(tmp_path / "sites")
    site.train(1, ["p1"])
    site.begin()
    for round in (1, 2, 3):
        site.train(round, ["p1"])
    for name in (
        f"artifacts/{'f' * 64}.safetensors",
        "stray/a.safetensors",
        "cache/b.safetensors",
        "../logs/worker.log",
        "../pki/site.key",
        "sums/3.key",
        "../gen-0001/sums/1.key",
    ):
        path = site.home / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"old")
    return site


def names(site: TrainedSite, old: list[OldPath]) -> set[str]:
    return {str(each.path.relative_to(site.folder.path.parent)).removeprefix("asia/") for each in old}


def test_what_rounds_need_stays_and_the_rest_is_listed_by_kind(site: TrainedSite) -> None:
    old = find_old(site.folder, before_s=NOW_S)
    assert names(site, old) == {
        f"gen-0001/artifacts/{1:032x}{1:032x}.safetensors",
        f"gen-0002/artifacts/{'f' * 64}.safetensors",
        "gen-0001/checkpoints/round-000001/train/record.json",
        "gen-0002/stray/a.safetensors",
        "gen-0002/cache/b.safetensors",
        "gen-0002/checkpoints/round-000001",
        "logs/worker.log",
    }
    delete(old)
    assert find_old(site.folder, before_s=NOW_S) == []
    assert {path.name for path in (site.home / "checkpoints").iterdir()} == {"round-000002", "round-000003"}
    assert {path.stem[-1] for path in (site.home / "artifacts").iterdir()} == {"1", "2", "3"}
    kept = ("journal.db", "cohorts/key", "../gen-0001/journal.db", "../gen-0001/cohorts/key", "../pki/site.key")
    for name in (*kept, "sums/3.key", "../gen-0001/sums/1.key"):
        assert (site.home / name).exists()


def test_only_what_is_older_than_the_bound_goes(site: TrainedSite) -> None:
    os.utime(site.home / "cache" / "b.safetensors", (1000.0, 1000.0))
    assert names(site, find_old(site.folder, before_s=2000.0)) == {"gen-0002/cache/b.safetensors"}


def test_without_its_journal_a_generation_s_files_stay(site: TrainedSite) -> None:
    for path in site.home.glob("journal.db*"):
        path.unlink()
    listed = names(site, find_old(site.folder, before_s=NOW_S))
    assert not {name for name in listed if name.startswith(("gen-0002/artifacts", "gen-0002/checkpoints"))}
    assert "gen-0001/checkpoints/round-000001/train/record.json" in listed


def test_of_a_folder_that_restore_replaced_only_weights_images_and_logs_go(site: TrainedSite) -> None:
    former = site.folder.path.with_name("asia.before-20260101T000000.000000Z")
    site.folder.path.rename(former)
    site.folder.path.mkdir()
    old = find_old(site.folder, before_s=NOW_S)
    assert {each.path.name for each in old} >= {"worker.log", "a.safetensors", "b.safetensors"}
    assert not {"journal.db", "key", "site.key", "federation.toml"} & {each.path.name for each in old}
    delete(old)
    assert (former / "gen-0002" / "journal.db").exists()
    assert not list(former.rglob("*.safetensors"))


def test_after_a_kill_the_next_call_lists_the_rest(site: TrainedSite) -> None:
    old = find_old(site.folder, before_s=NOW_S)
    delete(old[:2])
    assert find_old(site.folder, before_s=NOW_S) == old[2:]
    delete(old)


def test_a_file_that_cannot_be_deleted_is_named(site: TrainedSite, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(DiskError, match="file/b cannot be deleted"):
        delete([OldPath("logs", path / "b", 1, 1, 0.0)])
