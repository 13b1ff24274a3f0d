"""A round's secrets are on disk before their public half is known, for this user alone, until they are forgotten."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from peer.core.roster import SiteName
from peer.site.sums.secret_files import SumSecretFiles

ASIA, EUROPE = SiteName("asia"), SiteName("europe")


@pytest.fixture
def files(tmp_path: Path) -> SumSecretFiles:
    return SumSecretFiles(tmp_path / "sums")


def test_what_is_drawn_is_there_after_a_restart_and_drawn_anew_if_nobody_has_seen_it(files: SumSecretFiles) -> None:
    assert files.draw(3) != (key := files.draw(3)), "a journal that was put back may not know what was masked before"
    assert len(key) == 32
    assert files.draw(4) != key
    again = SumSecretFiles(files.folder)
    secrets = again.load(3)
    assert secrets is not None
    assert secrets.public_key == key
    assert again.rounds() == {3, 4}


def test_only_this_user_may_read_them(files: SumSecretFiles) -> None:
    files.draw(3)
    files.keep_pair_seeds(3, {ASIA: b"s" * 32})
    (path,) = files.folder.iterdir()
    assert path.name == "3.key"
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_seeds_of_pairs_are_kept_beside_them(files: SumSecretFiles) -> None:
    files.draw(3)
    files.keep_pair_seeds(3, {ASIA: b"s" * 32})
    files.keep_pair_seeds(3, {ASIA: b"t" * 32, EUROPE: b"u" * 32})
    again = SumSecretFiles(files.folder)
    assert again.pair_seeds(3) == {ASIA: b"t" * 32, EUROPE: b"u" * 32}
    assert again.pair_seeds(4) == {}
    again.draw(3)
    assert again.pair_seeds(3) == {}


def test_no_seeds_are_kept_without_secrets(files: SumSecretFiles) -> None:
    with pytest.raises(ValueError, match="no secrets of the sum of round 3"):
        files.keep_pair_seeds(3, {ASIA: b"s" * 32})
    assert not files.folder.exists()


@pytest.mark.parametrize(
    "change",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"private_key": 1, "own_seed": 2, "pairs": {}}',
        {"own_seed": "ab"},
        {"private_key": "zz" * 32},
        {"pairs": {"Asia": "ab" * 32}},
        {"pairs": {"asia": "ab"}},
        {"pairs": []},
    ],
)
def test_a_damaged_file_counts_as_none(files: SumSecretFiles, change: bytes | dict[str, object]) -> None:
    key = files.draw(3)
    files.draw(4)
    path = files.folder / "3.key"
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert files.load(3) is None
    assert files.pair_seeds(3) == {}
    assert files.rounds() == {4}
    assert files.draw(3) != key  # nobody was told the former key, or this site has lost its memory


def test_old_ones_are_forgotten(files: SumSecretFiles) -> None:
    files.forget(10)
    for round in (1, 2, 3, 12):
        files.draw(round)
    files.forget(3)
    assert files.rounds() == {3, 12}
    assert [path.name for path in sorted(files.folder.iterdir())] == ["12.key", "3.key"]


def test_what_a_crash_left_half_written_goes_and_other_files_are_no_rounds(files: SumSecretFiles) -> None:
    files.prepare()
    for name in (".unfinished-1-2-5.key", "0.key", "07.key", "x.key", "7.key.old"):
        (files.folder / name).write_text("{}")
    again = SumSecretFiles(files.folder)
    again.forget(100)
    assert again.rounds() == frozenset()
    assert sorted(path.name for path in files.folder.iterdir()) == ["0.key", "07.key", "7.key.old", "x.key"]


def test_there_are_none_before_the_first(files: SumSecretFiles) -> None:
    assert files.rounds() == frozenset()
    assert files.load(1) is None
    files.prepare()
    files.prepare()
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
