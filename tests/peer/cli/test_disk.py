"""`disk` adds up what lies in a site's folder, by its subfolders."""

from pathlib import Path

from fakes.cli import run, run_json
from fakes.trained_site import TrainedSite


def test_it_adds_up_every_file(tmp_path: Path) -> None:
    site = TrainedSite(tmp_path / "sites")
    site.train(1, ["p1"])
    options = ("--home", site.folder.home, "disk")
    document, folder = run_json(*options), site.folder.path
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]
    assert document["bytes"] == sum(path.stat().st_size for path in files)
    assert [part["name"] for part in document["parts"]] == sorted({path.relative_to(folder).parts[0] for path in files})
    assert sum(part["files"] for part in document["parts"]) == len(files)
    assert "takes" in run(*options).stdout
