"""What a site's models are used for beside its daemon: where its training stands, and a process that has torch."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import errors
from peer.config.schema import FederationConfig, SiteConfig, check_site
from peer.config.site_folder import SiteFolder
from peer.core import site_memory
from peer.core.commands import Source
from peer.core.worker_protocol import WorkerSetting, to_json
from peer.records.journal import Journal
from peer.records.kept_configuration import find_change

TRIES = 5
"""A daemon with rounds of seconds may delete a state once while it is taken, hardly five times."""

HELD = "held"
"""The folder in a site's folder with the states that processes beside the daemon use."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The newest finished state of a site: its checkpoint, what its round had received, and the round's number.

    ``committed`` is 0 before the first round is finished; ``state`` then names the initial model. ``generation`` is the
    one that peers know; a restored backup counts on in the folder of the former one, where the ``journal`` is.
    """

    journal: Path
    setting: WorkerSetting
    state: str
    sources: tuple[Source, ...]
    generation: int
    committed: int

    def document(self) -> dict[str, Any]:
        """What a process with torch needs, as JSON values: ``setting``, ``state`` and ``sources``."""
        return {"setting": to_json(self.setting), "state": self.state, "sources": to_json(self.sources)}


def standing(folder: SiteFolder, federation: FederationConfig, site: SiteConfig) -> ModelState:
    """Where the newest generation of a site stands, from its journal; the daemon may be running.

    Raises:
        StateError: no model was made yet.
    """
    number = max(folder.generations(), default=0)
    home = folder.generation(number)
    memory, sources = _state(())
    if (home / "journal.db").exists():
        with contextlib.closing(Journal(home / "journal.db", read_only=True)) as journal:
            memory, sources = journal.fold(_state)
    if not memory.state:
        raise errors.StateError(f"{folder.path} holds no model yet", f"run `mhfl-peer start --site {folder.site}`")
    setting = WorkerSetting(
        site_name=folder.site,
        federation_digest=federation.digest,
        federation=federation.model_dump(mode="json"),
        site=site.model_dump(mode="json"),
        home=str(home),
        base_folder=str(folder.path),
    )
    generation = max(memory.generation, number)
    return ModelState(home / "journal.db", setting, memory.state, sources, generation, memory.committed)


def _state(stored: Iterable[site_memory.Row]) -> tuple[site_memory.Memory, tuple[Source, ...]]:
    """What the rows say, and what the last committed round used."""
    rows = list(stored)
    return site_memory.recover(rows), site_memory.used_sources(rows)


@contextlib.contextmanager
def trained(folder: SiteFolder, round: int | None = None) -> Iterator[tuple[FederationConfig, ModelState]]:
    """The federation and a state of the site that has been trained, by the configuration that it was trained with.

    No certificate is needed: nothing is sent. The state's files stay while this lasts, also if the daemon trains on.

    Args:
        folder: of the site.
        round: the one after which the state was finished; default: the newest.

    Raises:
        StateError: no round is finished, that round's weights are not kept, or the configuration is another now.
    """
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    check_site(federation, site, folder.site)
    problem = find_change(folder, federation, site)
    if problem is not None:
        raise problem

    def finished() -> ModelState:
        newest = standing(folder, federation, site)
        if not newest.committed:
            raise errors.StateError(
                f"the model of {folder.site} is untrained: no round is finished", "see `mhfl-peer status`"
            )
        return newest if round in (None, newest.committed) else _earlier(newest, round)

    with pinned(finished) as state:
        yield federation, state


def _earlier(newest: ModelState, round: int | None) -> ModelState:
    """The state after a round that is not the newest one, if its checkpoint is still there."""
    home = newest.journal.parent
    with contextlib.closing(Journal(newest.journal, read_only=True)) as journal:
        rows = list(journal.rows())
    kept = {}
    for place, (kind, number, body) in enumerate(rows):
        if kind == "committed" and (home / "checkpoints" / body["state"] / "record.json").exists():
            sources = site_memory.used_sources(rows[: place + 1])
            kept[number] = dataclasses.replace(newest, state=body["state"], sources=sources, committed=number)
    if round not in kept:
        there = ", ".join(map(str, sorted(kept)))
        raise errors.StateError(
            f"the weights of {newest.setting.site_name} after round {round} are not kept "
            f"(those after {there or 'none'} are)",
            "name one of these, or the newest",
        )
    return kept[round]


@contextlib.contextmanager
def pinned(look: Callable[[], ModelState]) -> Iterator[ModelState]:
    """A standing whose files stay while this lasts, in a folder of its own; a daemon that trains on deletes them.

    The folder is in that of the site, so that links take no space.

    Args:
        look: tells the standing; asked again where its files are gone by the time that they were to be taken.

    Raises:
        StateError: the files are gone each time.
    """
    for _ in range(TRIES):
        found = look()
        with _private_folder(Path(found.setting.base_folder)) as folder:
            try:
                _take(Path(found.setting.home), folder, found)
            except FileNotFoundError as error:
                missing = error.filename
                continue
            if look().state != found.state:  # what the round had received may have been deleted before it was taken
                missing = f"what {found.state!r} had received"
                continue
            yield dataclasses.replace(found, setting=dataclasses.replace(found.setting, home=str(folder)))
            return
    raise errors.StateError(f"{missing} is not there", "restore the whole folder from one backup of this site")


@contextlib.contextmanager
def _private_folder(base: Path) -> Iterator[Path]:
    """A new folder under ``HELD``, or in the temporary one where this user may not write to the site's.

    This process locks it: folders that nobody locks are those of killed processes, and are deleted.
    """
    parent = base / HELD
    with contextlib.ExitStack() as stack:
        try:
            parent.mkdir(mode=0o700, exist_ok=True)
            with _locked(parent, wait=True):  # nobody may delete a folder between its making and its lock
                for left in parent.iterdir():
                    with contextlib.suppress(OSError), _locked(left):
                        shutil.rmtree(left)
                folder = Path(tempfile.mkdtemp(dir=parent))
                stack.enter_context(_locked(folder))
        except OSError:
            folder = Path(tempfile.mkdtemp(prefix="mhfl-state-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder's lock; without ``wait``, ``BlockingIOError`` where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _take(home: Path, copy: Path, found: ModelState) -> None:
    """Link, or copy to another disk, the checkpoint of a standing and what its round had received."""
    artifacts = (f"artifacts/{source.artifact.sha256}.safetensors" for source in found.sources)
    names = [name for name in artifacts if (home / name).exists()]  # most methods need none of them any more
    names += [str(path.relative_to(home)) for path in (home / "checkpoints" / found.state).iterdir() if path.is_file()]
    (copy / "artifacts").mkdir()
    (copy / "checkpoints" / found.state).mkdir(parents=True)
    for name in names:
        try:
            os.link(home / name, copy / name)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or one that knows no links
            shutil.copyfile(home / name, copy / name)


@contextlib.contextmanager
def tidied() -> Iterator[None]:
    """SIGTERM ends this like Ctrl-C does, with the children and whatever is half written; in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_module(module: str, request: Mapping[str, Any], *, what: str, limit_s: float | None = None) -> Any:
    """The JSON document with which a module answers a request, in a process of its own that may load torch.

    Args:
        module: is run with ``python -m``; it reads the request from standard input and answers on standard output.
        request: JSON values.
        what: the answer's name in errors.
        limit_s: it must have answered by then.

    Raises:
        WorkerFailed: it ended without an answer; the message has the last line that it said.
    """
    try:
        with tidied():
            done = subprocess.run(
                [sys.executable, "-P", "-m", module],  # what is called `models` or `peer` in this folder is not ours
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise errors.WorkerFailed(f"{what} took over {limit_s:.0f} s", "look at the machine's load") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise errors.WorkerFailed(
            f"{what} failed: {lines[-1] if lines else 'it said nothing'}", "correct what it names and run it again"
        )
    return json.loads(done.stdout)
