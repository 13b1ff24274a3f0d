"""Files and folders that are written whole."""

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peer import files


def test_a_file_is_replaced_and_leaves_nothing_behind(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a", b"one")
    for mode in (0o600, 0o640):
        files.write_file(tmp_path / "a", b"two", mode)
        assert ((tmp_path / "a").read_bytes(), (tmp_path / "a").stat().st_mode & 0o777) == (b"two", mode)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_threads_replace_one_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, both = files._write, threading.Barrier(2)

    def write_and_wait(path: Path, content: bytes, mode: int | None = None) -> None:
        write(path, content, mode)
        both.wait(30)

    monkeypatch.setattr(files, "_write", write_and_wait)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(files.write_file, [tmp_path / "a"] * 2, [b"one", b"two"]))
    assert (tmp_path / "a").read_bytes() in (b"one", b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_artifact_in_parts_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def parts(error: str = "") -> Iterator[bytes | memoryview]:
        yield b"one"
        if error:
            raise ValueError(error)
        yield memoryview(b" two")

    with pytest.raises(ValueError, match="no number"):
        files.write_artifact_parts(tmp_path, parts("no number"))
    assert list(tmp_path.iterdir()) == []
    digest = hashlib.sha256(b"one two").hexdigest()
    for _ in range(2):
        assert files.write_artifact_parts(tmp_path, parts()) == (digest, 7)
    (path,) = tmp_path.iterdir()
    assert (path, path.read_bytes()) == (files.artifact_path(tmp_path, digest), b"one two")


def test_a_folder_replaces_one_with_other_files(tmp_path: Path) -> None:
    files.write_folder(tmp_path / "x" / "y", {"a": b"1", "b": b"2"})
    files.write_folder(tmp_path / "x" / "y", {"c": b"3"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "x" / "y").iterdir()} == {"c": b"3"}
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["y"]


def test_an_unfinished_write_is_neither_read_nor_kept(tmp_path: Path) -> None:
    class Cut(dict[str, bytes]):
        def items(self):  # type: ignore[no-untyped-def]
            yield "a", b"1"
            raise OSError("the power went")

    files.write_folder(tmp_path / "y", {"a": b"old"})
    with pytest.raises(OSError, match="power"):
        files.write_folder(tmp_path / "y", Cut())
    (tmp_path / f"{files.UNFINISHED}file").touch()
    assert (tmp_path / "y" / "a").read_bytes() == b"old"
    files.clear_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


def test_removing_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    files.remove_folder(tmp_path / "none")
    files.write_folder(tmp_path / "y", {"a": b"1"})
    files.remove_folder(tmp_path / "y")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_file(tmp_path / "a", b"one")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert files.stamp(path) == ()
    path.write_bytes(b"one")
    before = files.stamp(path)
    assert before == files.stamp(path)
    files.write_file(path, b"two")
    assert files.stamp(path) not in ((), before)
