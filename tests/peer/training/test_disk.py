"""Files and folders that appear whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.training import disk


def test_a_file_is_replaced_and_leaves_nothing_behind(tmp_path: Path) -> None:
    disk.write_file(tmp_path / "a", b"one")
    disk.write_file(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_replaces_one_with_other_files(tmp_path: Path) -> None:
    disk.write_folder(tmp_path / "x" / "y", {"a": b"1", "b": b"2"})
    disk.write_folder(tmp_path / "x" / "y", {"c": b"3"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "x" / "y").iterdir()} == {"c": b"3"}
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["y"]


def test_an_unfinished_write_is_neither_read_nor_kept(tmp_path: Path) -> None:
    class Cut(dict[str, bytes]):
        def items(self):  # type: ignore[no-untyped-def]
            yield "a", b"1"
            raise OSError("the power went")

    disk.write_folder(tmp_path / "y", {"a": b"old"})
    with pytest.raises(OSError, match="power"):
        disk.write_folder(tmp_path / "y", Cut())
    (tmp_path / f"{disk.UNFINISHED}file").touch()
    assert (tmp_path / "y" / "a").read_bytes() == b"old"
    disk.clear_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


def test_removing_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    disk.remove_folder(tmp_path / "none")
    disk.write_folder(tmp_path / "y", {"a": b"1"})
    disk.remove_folder(tmp_path / "y")
    assert list(tmp_path.iterdir()) == []
