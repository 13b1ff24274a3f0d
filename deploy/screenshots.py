"""Draw the pictures of the pages that people look at: dashboard, officer's page and contact sheet.

Run it from anywhere: ``python deploy/screenshots.py``, or with the names of some pictures. It needs
Chromium, the extra `research`, and what `mhfl-peer demo` and `data prepare mni-tissue` need. For the
dashboard, four daemons train on this machine for some minutes; one of them is killed, so that the
pictures show what the others then do. Each picture keeps the digest of the modules that draw its
page: ``--check`` draws nothing and names the pictures whose page has changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import nibabel
import numpy as np
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform
from PIL import Image, PngImagePlugin

DEPLOY = Path(__file__).resolve().parent
ROOT = DEPLOY.parent
sys.path.insert(0, str(ROOT))

from peer import __version__  # noqa: E402 - found beside this script, whether installed or not
from peer.audit import evidence_files, verification  # noqa: E402
from peer.errors import DaemonDown  # noqa: E402
from peer.lab.datasets import tissue  # noqa: E402
from peer.lab.demo.local_federation import LocalFederation  # noqa: E402
from peer.lab.demo.presets import PresetSize, study  # noqa: E402
from peer.lab.demo.run import configuration, train_simulated, write_references  # noqa: E402
from peer.lab.experiments.pool import gather  # noqa: E402
from peer.lab.experiments.result_files import CENTRALISED  # noqa: E402
from peer.lab.experiments.runs import build_runs  # noqa: E402
from peer.train.data import prepared_folder  # noqa: E402
from peer.view.dashboard.collect import FederationReader  # noqa: E402
from peer.view.dashboard.egress_page import read_report, write_report  # noqa: E402
from peer.view.dashboard.page import write_page  # noqa: E402

DASHBOARD, OFFICERS, SHEET = ("dashboard-wide", "dashboard-narrow"), "egress-report", "contact-sheet"
SHARED = (
    "peer/web_page.py",
    "peer/templates/base.html.j2",
    "peer/templates/charts.html.j2",
    "peer/templates/page.css",
    "peer/templates/parts.html.j2",
)
SOURCES = {
    **dict.fromkeys(
        DASHBOARD,
        (
            *SHARED,
            *(f"peer/view/dashboard/{name}" for name in ("page.py", "ring.py", "chart.py")),
            "peer/templates/dashboard.html.j2",
            "peer/templates/dashboard.css",
            "peer/site/records/snapshot.py",
        ),
    ),
    OFFICERS: (
        *SHARED,
        "peer/view/dashboard/egress_page.py",
        "peer/templates/dashboard.css",
        "peer/templates/egress.html.j2",
        "peer/templates/egress.css",
    ),
    SHEET: (
        *SHARED,
        "peer/train/data/sheet_page.py",
        "peer/templates/contact_sheet.html.j2",
        "peer/templates/contact_sheet.css",
        "peer/train/inference/sheet_pictures.py",
        "peer/train/inference/contact_sheet.py",
    ),
}
"""The modules and templates that draw each picture's page."""
KEY = "Sources"
"""The text of a PNG file that has their digest."""
METHOD = "fedvisit"
SIZE = PresetSize(rounds=40, steps=12)
KILLED, KILLED_AT = "america", 8
WITNESS, AUDITED = "africa", "asia"
LIMIT_S = 900.0
BYTES_MAX = 150_000
"""Bytes of a picture: these pages lie in the repository."""
COLOURS = 128
VOLUMES, TURNED, TESTED = 8, 3, (5, 6, 7)
"""Volumes of the contact sheet, the one that is stored in other directions, and those of the test."""
STEP = 3
"""Voxels of the template along each side of a voxel of these volumes."""


def main(arguments: list[str] | None = None) -> int:
    """Draw pictures; with ``--check`` the exit status is 1 where a page has changed since its picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*SOURCES, []], help="pictures to draw; left out: all")
    parser.add_argument(
        "--check", action="store_true", help="draw nothing; name the pictures that are older than their pages"
    )
    given = parser.parse_args(arguments)
    names = given.names or list(SOURCES)
    if given.check:
        stale = [name for name in names if drawn_from(name) != digest(name)]
        for name in stale:
            print(f"deploy/{name}.png is older than its page: python deploy/screenshots.py {name}", file=sys.stderr)
        return bool(stale)
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("no Chromium on this machine", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        if SHEET in names:
            page = _write_sheet(Path(folder))
            _draw(browser, page, SHEET, width=1100, height=1105, dark=False)
        if {*names} - {SHEET}:
            _draw_federation(browser, Path(folder), names)
    return 0


def digest(name: str) -> str:
    """The digest of the modules that draw a picture's page."""
    sources = hashlib.sha256()
    for path in SOURCES[name]:
        sources.update((ROOT / path).read_bytes())
    return sources.hexdigest()


def drawn_from(name: str) -> str | None:
    """The digest of the modules that drew a picture's page, from its file."""
    with Image.open(DEPLOY / f"{name}.png") as image:
        text = image.info.get(KEY)
    return None if text is None else str(text)


def _draw_federation(browser: str, folder: Path, names: Iterable[str]) -> None:
    """The pictures of a federation that runs, and of one site's ledger."""
    experiment = study("blinks", ["local", METHOD], SIZE, {"visits": 2})
    pool = gather(experiment, folder / "data")
    runs = {run.document["method"]: run for run in build_runs(experiment, pool, folder / "runs")}
    for run in runs.values():
        run.write()
    bounds = {label: train_simulated(experiment, runs[label], lambda _: None) for label in ("local", CENTRALISED)}
    draft, sites = configuration(experiment, runs[METHOD], pool)
    with LocalFederation.create(folder / "federation", draft, sites) as federation:
        write_references(folder / "federation", experiment.metric, bounds)
        for site in sites:
            federation.start(site)
        _wait(lambda: _round(federation, KILLED) >= KILLED_AT)
        federation.kill(KILLED)
        _wait(lambda: KILLED in _missing(federation) and _sends(federation))
        snapshots = FederationReader([federation.folder(site) for site in sites]).read()
    page, officers = folder / "page.html", folder / "officers.html"
    page.write_text(write_page(snapshots, version=__version__), "utf-8")
    witness = folder / "witness.json"
    evidence = verification.make_witness(federation.folder(WITNESS), AUDITED)
    witness.write_bytes(evidence_files.encode(evidence))
    report = read_report(federation.folder(AUDITED), [witness], time_s=time.time())
    officers.write_text(write_report(report, version=__version__), "utf-8")
    for name, width, height, dark in zip(DASHBOARD, (1400, 400), (1650, 1120), (False, True), strict=True):
        if name in names:
            _draw(browser, page, name, width=width, height=height, dark=dark)
    if OFFICERS in names:
        _draw(browser, officers, OFFICERS, width=1100, height=1300, dark=False)


def _write_sheet(folder: Path) -> Path:
    """The contact sheet of volumes of the template, one of them stored in other directions."""
    template = tissue.read_template(prepared_folder.package_file(tissue.PACKAGE, tissue.DATA))
    image, grey, white = (_pool(volume) for volume in (template.image, template.grey, template.white))
    labels = np.argmax([255 - grey - white, grey, white], axis=0).astype(np.uint8)
    affine = np.diag([STEP, STEP, STEP, 1.0])
    entries = []
    volumes = folder / "vol"
    volumes.mkdir()
    for number in range(VOLUMES):
        noise = np.random.default_rng(number).normal(0, 4, image.shape)
        for kind, values in (("t1", (image + noise).astype(np.float32)), ("tissue", labels)):
            volume = nibabel.Nifti1Image(values, affine)
            if number == TURNED:
                volume = volume.as_reoriented(ornt_transform(io_orientation(affine), axcodes2ornt("SLP")))
            nibabel.save(volume, volumes / f"{kind}-{number}.nii.gz")
        entries.append({"image": f"t1-{number}.nii.gz", "label": f"tissue-{number}.nii.gz", "subject": f"s{number}"})
    listed = {
        "labels": {str(number): name for number, name in enumerate(tissue.CLASSES)},
        "training": [entry for number, entry in enumerate(entries) if number not in TESTED],
        "test": [entries[number] for number in TESTED],
    }
    (volumes / "datalist.json").write_text(json.dumps(listed))
    options = ["--task", "segmentation", "--normalise", "zscore", "--out", "sheet.html"]
    command = [sys.executable, "-P", "-m", "peer.cli", "data", "inspect", "vol/datalist.json", *options]
    subprocess.run(command, check=True, cwd=folder, capture_output=True, timeout=LIMIT_S)
    return folder / "sheet.html"


def _pool(volume: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The mean of each cube of voxels."""
    side = volume.shape[0] // STEP
    pooled: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    pooled = volume.reshape(side, STEP, side, STEP, side, STEP).mean(axis=(1, 3, 5))
    return pooled


def _wait(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > end_s:
            raise SystemExit("the federation did not get so far")
        time.sleep(0.05)


def _round(federation: LocalFederation, site: str) -> int:
    try:
        return int(federation.show(site, "status")["round"])
    except DaemonDown:
        return 0


def _missing(federation: LocalFederation) -> set[str]:
    """The sites without which a site's newest round went on."""
    status = federation.show(AUDITED, "status")
    return set((status["last_round"] or {}).get("missing", ()))


def _sends(federation: LocalFederation) -> bool:
    """Whether a moment is there at which there is much to see: a site waits, and another trains."""
    phases = {federation.show(site, "status")["phase"] for site in federation.daemons if site != KILLED}
    return "exchange" in phases and len(phases) > 1


def _draw(browser: str, page: Path, name: str, *, width: int, height: int, dark: bool) -> None:
    """A picture of the page; a frame holds it, since a window has a least width."""
    frame = page.with_suffix(".frame.html")
    frame.write_text(
        f'<!doctype html><body style="margin:0"><iframe src="{page.name}" width="{width}" height="{height}" '
        'style="border:0"></iframe>'
    )
    shot = page.with_suffix(".png")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={page.parent / 'profile'}", f"--blink-settings=preferredColorScheme={int(not dark)}"]
    command += [f"--window-size={max(width, 600)},{height + 200}", f"--screenshot={shot}", frame.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    picture, text = DEPLOY / f"{name}.png", PngImagePlugin.PngInfo()
    text.add_text(KEY, digest(name))
    with Image.open(shot) as image:
        image.convert("RGB").crop((0, 0, width, height)).quantize(COLOURS).save(picture, optimize=True, pnginfo=text)
    print(f"{picture.name}: {picture.stat().st_size} bytes")
    assert picture.stat().st_size <= BYTES_MAX, "too many bytes"


if __name__ == "__main__":
    sys.exit(main())
