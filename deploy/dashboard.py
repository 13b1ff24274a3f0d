"""Draw the pictures of the dashboard and of the officer's page in these pages, from a federation that runs.

Run it from anywhere: ``python deploy/dashboard.py``. It needs Chromium, the extra `research` and what
`mhfl-peer demo` needs. Four daemons train on this machine for a minute or two; one of them is killed,
so that the pictures show what the others then do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

DEPLOY = Path(__file__).resolve().parent
sys.path.insert(0, str(DEPLOY.parent))

from peer import __version__  # noqa: E402 - found beside this script, whether installed or not
from peer.audit import evidence_files, verification  # noqa: E402
from peer.dashboard.collect import FederationReader  # noqa: E402
from peer.dashboard.egress_page import read_report, write_report  # noqa: E402
from peer.dashboard.page import write_page  # noqa: E402
from peer.demo.local_federation import LocalFederation  # noqa: E402
from peer.demo.presets import PresetSize, study  # noqa: E402
from peer.demo.run import configuration  # noqa: E402
from peer.errors import DaemonDown  # noqa: E402
from peer.research.pool import gather  # noqa: E402
from peer.research.runs import build_runs  # noqa: E402

METHOD = "fedvisit"
SIZE = PresetSize(rounds=40, steps=12)
KILLED, KILLED_AT = "america", 8
WITNESS, AUDITED = "africa", "asia"
LIMIT_S = 600.0
BYTES_MAX = 150_000
"""Bytes of a picture: these pages lie in the repository."""
COLOURS = 128


def main() -> int:
    """Write the pictures; the exit status is 1 where there is no browser."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("no Chromium on this machine", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        experiment = study("blinks", ["local", METHOD], SIZE, {"visits": 2})
        pool = gather(experiment, folder / "data")
        run = next(run for run in build_runs(experiment, pool, folder / "runs") if run.document["method"] == METHOD)
        run.write()
        draft, sites = configuration(experiment, run, pool)
        with LocalFederation.create(folder / "federation", draft, sites) as federation:
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
        _draw(browser, page, DEPLOY / "dashboard-wide.png", width=1400, height=1120, dark=False)
        _draw(browser, page, DEPLOY / "dashboard-narrow.png", width=400, height=1120, dark=True)
        _draw(browser, officers, DEPLOY / "egress-report.png", width=1100, height=1300, dark=False)
    return 0


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


def _draw(browser: str, page: Path, picture: Path, *, width: int, height: int, dark: bool) -> None:
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
    with Image.open(shot) as image:
        image.convert("RGB").crop((0, 0, width, height)).quantize(COLOURS).save(picture, optimize=True)
    print(f"{picture.name}: {picture.stat().st_size} bytes")
    assert picture.stat().st_size <= BYTES_MAX, "too many bytes"


if __name__ == "__main__":
    sys.exit(main())
