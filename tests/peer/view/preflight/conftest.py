"""Asia's folder with data, and `check` on it."""

import json
import os
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder
from peer.view.preflight.check import check
from peer.view.preflight.finding import Finding
from peer.view.preflight.local import GPU_VARIABLE, HOME_VARIABLES, PROXY_VARIABLES

Edit = Callable[[Path, str, str], None]


@pytest.fixture(autouse=True)
def _environment_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the findings independent of the variables that a developer's shell has set."""
    for name in list(os.environ):
        if name.lower() in PROXY_VARIABLES or name in (*HOME_VARIABLES, GPU_VARIABLE):
            monkeypatch.delenv(name)


@pytest.fixture
def write_data() -> Callable[..., None]:
    """Writes a datalist and files that are no images: no worker of these tests reads them."""

    def write(folder: SiteFolder, **changes: Any) -> None:
        items = [{"image": f"{index}.npz", "label": index % 2, "subject": str(index)} for index in range(6)]
        for item in items:
            (folder.path / str(item["image"])).write_text(str(item["image"]))
        document = {"training": items[:4], "test": items[4:], **changes}
        (folder.path / "datalist.json").write_text(json.dumps(document))

    return write


@pytest.fixture
def folder(enrolled: LocalFederation, write_data: Callable[..., None]) -> SiteFolder:
    """Asia's folder, with data that its worker does not read."""
    folder = enrolled.folder("asia")
    write_data(folder)
    return folder


@pytest.fixture
def edit() -> Edit:
    """Replaces a pattern in a file, which must have it."""

    def edit(path: Path, pattern: str, new: str) -> None:
        text, count = re.subn(pattern, new, path.read_text())
        assert count
        path.write_text(text)

    return edit


@pytest.fixture
def run_check(folder: SiteFolder, fake_worker: Callable[..., tuple[str, ...]]) -> Callable[..., dict[str, Finding]]:
    """The findings by subject, with a worker of some mode: ``run_check("bad data")``."""

    def run(mode: str | None = None, *, numbers: int = 64, **options: Any) -> dict[str, Finding]:
        worker = fake_worker(mode or "", numbers=numbers)
        findings = list(check(folder, train=mode is not None, worker=worker, **options))
        assert all(bool(finding.remedy) == (finding.verdict != "ok") for finding in findings), findings
        subjects = {finding.subject: finding for finding in findings}
        assert len(subjects) == len(findings), findings
        return subjects

    return run


class Stranger(socketserver.TCPServer):
    """A program that is no daemon."""

    allow_reuse_address = True


@pytest.fixture
def taken() -> Iterator[Callable[[str], None]]:
    """Listens on an address of loopback, and closes every connection."""
    servers: list[socketserver.TCPServer] = []

    def take(address: str) -> None:
        port = int(address.rpartition(":")[2])
        servers.append(Stranger(("127.0.0.1", port), socketserver.BaseRequestHandler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()

    yield take
    for server in servers:
        server.shutdown()
        server.server_close()
