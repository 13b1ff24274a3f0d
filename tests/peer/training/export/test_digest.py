"""The digest of an export is what `sha256sum` says of it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from peer.training.export.digest import digest


def test_a_file_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (1 << 21))
    assert digest(tmp_path / "a") == (hashlib.sha256(b"x" * (1 << 21)).hexdigest(), 1 << 21)


def test_a_folder_has_that_of_the_list_of_its_files(tmp_path: Path) -> None:
    for name in ("models/model.pt", "configs/b.json", "LICENSE"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    command = "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    said = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert digest(tmp_path) == (said.split()[0], 36)
    before = digest(tmp_path)
    (tmp_path / "LICENSE").rename(tmp_path / "LICENCE")
    assert digest(tmp_path) != before


@pytest.mark.parametrize("name", ["LICENSE\n{}  docs", "LICENSE\r{}  docs"])
def test_no_folder_is_taken_for_another_by_the_names_in_it(tmp_path: Path, name: str) -> None:
    good, other = tmp_path / "good", tmp_path / "other"
    for path in (good / "LICENSE", good / "docs" / "card.json", other / "card.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    listed = name.format(hashlib.sha256(b"card.json").hexdigest())
    bad = tmp_path / "bad" / listed
    bad.mkdir(parents=True)
    (bad / "card.json").write_text("LICENSE")
    with pytest.raises(ValueError, match="or a name of several lines, and has no digest"):
        digest(tmp_path / "bad")
    (good / "docs" / "card.json").unlink()
    (good / "docs").rmdir()
    (good / "docs").symlink_to(other)
    with pytest.raises(ValueError, match="it holds 'docs', a link"):
        digest(good)
