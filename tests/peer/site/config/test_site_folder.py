"""A site's folder: how commands find it, its lock, whole writes, a short control socket."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from peer.core.roster import SiteName
from peer.errors import DaemonDown, DiskError, LockedError, StateError, UsageError
from peer.site.config.site_folder import (
    SiteFolder,
    find_site,
    home_folder,
    make_private,
    must_be_new,
    must_be_new_or_page,
    sites,
    write_atomically,
)

ROOT = Path(__file__).parents[4]


def site_folder(home: Path, federation: str = "trial", site: str = "europe") -> SiteFolder:
    folder = SiteFolder(home, federation, SiteName(site))
    make_private(folder.path)
    folder.federation_toml.touch()
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_home_folder_prefers_what_is_nearest(tmp_path: Path) -> None:
    environ = {"MHFL_HOME": "/srv/mhfl", "XDG_STATE_HOME": "/var/state"}
    assert home_folder(tmp_path, environ) == tmp_path
    assert home_folder(None, environ) == Path("/srv/mhfl")
    assert home_folder(None, {"XDG_STATE_HOME": "/var/state"}) == Path("/var/state/mhfl")
    assert home_folder(None, {}) == Path.home() / ".local/share/mhfl"
    assert home_folder(Path("here"), {}) == Path.cwd() / "here"
    assert home_folder(Path("~/here"), {}) == Path.home() / "here"


def test_the_only_site_is_found_without_a_name(tmp_path: Path) -> None:
    europe = site_folder(tmp_path)
    (tmp_path / "trial" / "not-a-site").mkdir()
    (tmp_path / "trial" / "Not_A_Name").mkdir()
    (tmp_path / "trial" / "Not_A_Name" / "federation.toml").touch()
    assert sites(tmp_path) == (europe,)
    assert find_site(tmp_path) == find_site(tmp_path, "europe") == find_site(tmp_path, "trial/europe") == europe


def test_several_sites_need_a_name(tmp_path: Path) -> None:
    europe, asia, other = site_folder(tmp_path), site_folder(tmp_path, site="asia"), site_folder(tmp_path, "second")
    assert sites(tmp_path) == (other, asia, europe)
    assert find_site(tmp_path, "asia") == asia
    assert find_site(tmp_path, "second/europe") == other
    with pytest.raises(UsageError, match=r"several sites live under .*second/europe, trial/asia, trial/europe.*--site"):
        find_site(tmp_path)
    with pytest.raises(UsageError, match=r"several sites .*\(second/europe, trial/europe\)"):
        find_site(tmp_path, "europe")
    with pytest.raises(UsageError, match=r"no site 'africa' .*there: second/europe, trial/asia, trial/europe"):
        find_site(tmp_path, "africa")


def test_who_holds_a_folder_is_told_without_holding_it(tmp_path: Path) -> None:
    folder = site_folder(tmp_path)
    assert folder.holder() is None
    with folder.locked():
        assert folder.holder() == folder.holder() == str(os.getpid())
    assert folder.holder() is None
    with folder.locked():
        pass


def test_generations_follow_each_other(tmp_path: Path) -> None:
    folder = site_folder(tmp_path)
    assert folder.generations() == ()
    assert folder.create_generation() == 1
    assert folder.create_generation() == 2
    assert folder.create_generation(7) == 7
    (folder.path / "gen-x").mkdir()
    (folder.path / "gen-0009").touch()
    assert folder.generations() == (1, 2, 7)
    assert (folder.generation(7) / "artifacts").is_dir()
    assert (folder.generation(7) / "checkpoints").is_dir()
    with pytest.raises(StateError, match="already holds generation 7"):
        folder.create_generation(7)
    assert SiteFolder(tmp_path, "trial", SiteName("asia")).generations() == ()


def test_folders_are_private(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b")
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]
    (tmp_path / "a").chmod(0o755)
    make_private(tmp_path / "a" / "b")
    assert mode(tmp_path / "a") == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="is not a folder"):
        make_private(tmp_path / "file")
    with pytest.raises(DiskError, match="cannot be made: Not a directory"):
        make_private(tmp_path / "file" / "folder")


def test_write_replaces_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"first")
    assert (path.read_bytes(), mode(path)) == (b"first", 0o600)
    reader = path.open("rb")
    write_atomically(path, b"second", 0o644)
    assert (path.read_bytes(), mode(path)) == (b"second", 0o644)
    with reader:
        assert reader.read() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_failed_write_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(DiskError, match="folder cannot be written"):
        write_atomically(tmp_path / "folder", b"content")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(DiskError, match="No such file or directory"):
        write_atomically(tmp_path / "missing" / "file", b"content")


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    """A file size limit of 1000 bytes stands in for a full disk: the write itself fails half-way."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    script = """
import resource, signal, sys
from pathlib import Path
from peer.errors import DiskError
from peer.site.config.site_folder import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path(sys.argv[1]), b"x" * 100_000)
except DiskError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == f"{path} cannot be written: File too large; {DiskError.usual_remedy}\n"
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_files_that_people_named_are_not_overwritten(tmp_path: Path) -> None:
    must_be_new(tmp_path / "new")
    (tmp_path / "old").touch()
    with pytest.raises(StateError, match="old exists; remove it, or name another file"):
        must_be_new(tmp_path / "old")


def test_a_page_replaces_a_page_and_no_other_file(tmp_path: Path) -> None:
    must_be_new_or_page(tmp_path / "new")
    (tmp_path / "page").write_text("<!DOCTYPE html>\n<html>")
    must_be_new_or_page(tmp_path / "page")
    (tmp_path / "datalist.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    for name in ("datalist.json", "folder"):
        with pytest.raises(StateError, match=f"{name} exists; remove it, or name another file"):
            must_be_new_or_page(tmp_path / name)


def test_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    folder = site_folder(tmp_path)
    script = """
import sys
from pathlib import Path
from peer.site.config.site_folder import find_site
with find_site(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(LockedError, match=f"is held by process {holder.pid}; stop it first"), folder.locked():
            pytest.fail("two processes hold one folder")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with folder.locked():
        assert folder.lock.read_text() == f"{os.getpid()}\n"
        assert mode(folder.lock) == 0o600
        with pytest.raises(LockedError, match=f"process {os.getpid()}"), folder.locked():
            pytest.fail("one process holds a folder twice")
    with folder.locked():
        pass


def test_lock_needs_the_folder(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskError, match="lock cannot be opened: No such file"),
        SiteFolder(tmp_path, "a", SiteName("b")).locked(),
    ):
        pytest.fail("locked what is not there")


@pytest.fixture
def short_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


def bind(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    return server


def test_control_socket_lies_in_the_folder(short_home: Path) -> None:
    folder = site_folder(short_home, "t", "e")
    path = folder.prepare_control_socket({})
    assert path == folder.path / "control" / "control.sock" == folder.control_socket()
    assert mode(path.parent) == 0o700
    bind(path).close()
    assert not folder.control_path.exists()


def test_long_control_socket_moves_to_the_runtime_folder(tmp_path: Path, short_home: Path) -> None:
    folder = site_folder(tmp_path / ("deep" * 20))
    with pytest.raises(DaemonDown, match="has no control socket"):
        folder.control_socket()
    path = folder.prepare_control_socket({"XDG_RUNTIME_DIR": str(short_home)})
    assert path.parent.parent == short_home
    assert mode(path.parent) == 0o700
    assert folder.control_path.read_text() == f"{path}\n"
    assert folder.control_socket() == path
    bind(path).close()
    assert folder.prepare_control_socket({"XDG_RUNTIME_DIR": "/elsewhere"}) == path


def test_noted_socket_folder_is_left_when_others_can_enter_it(tmp_path: Path, short_home: Path) -> None:
    folder = site_folder(tmp_path / ("deep" * 20))
    environ = {"XDG_RUNTIME_DIR": str(short_home)}
    first = folder.prepare_control_socket(environ)
    first.parent.chmod(0o755)
    second = folder.prepare_control_socket(environ)
    second.parent.rmdir()
    third = folder.prepare_control_socket(environ)
    assert len({first, second, third}) == 3
    third.parent.rmdir()
    third.parent.symlink_to(first.parent)
    assert folder.prepare_control_socket(environ) not in {first, second, third}


def test_socket_without_a_short_folder(tmp_path: Path) -> None:
    folder = site_folder(tmp_path / ("deep" * 20))
    with pytest.raises(StateError, match="is over 100 bytes; set XDG_RUNTIME_DIR"):
        folder.prepare_control_socket({"XDG_RUNTIME_DIR": str(folder.path)})
    assert not list(folder.path.glob("mhfl-*"))
    with pytest.raises(DiskError, match="takes no folder for the control socket"):
        folder.prepare_control_socket({"XDG_RUNTIME_DIR": "/missing"})
