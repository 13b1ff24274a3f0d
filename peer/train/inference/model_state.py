"""Read a site's newest or best finished model state, and run a process that loads torch."""

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
from typing import Any, Literal

from peer import errors
from peer.core import site_memory
from peer.core.artifacts import Source
from peer.core.metrics import metric_title
from peer.core.site_memory import BestRound
from peer.core.worker_protocol import WorkerSetting, to_json
from peer.site.config.rules import worker_setting
from peer.site.config.schema import FederationConfig, SiteConfig, check_site
from peer.site.config.site_folder import SiteFolder
from peer.site.membership.folder import MembershipFolder
from peer.site.records.journal import Journal
from peer.site.records.kept_configuration import find_change

TRIES = 5
"""A daemon with rounds of seconds may delete a state once before it is linked, but hardly 5 times."""

Round = int | Literal["best"] | None
"""Selects the finished round of the model: a number, the best on the site's validation data, or None for the last."""

HELD = "held"
"""The folder, in a site's folder, for states in use by processes beside the daemon."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """A finished state of a site: its checkpoint, the artifacts that its round used, and the round's number.

    ``committed`` is 0 before the first round is finished; ``checkpoint`` is then the initial one. ``best`` is the best
    evaluated round so far, and ``is_best`` says that the state was chosen as that round's; ``validation_samples`` is
    the size of the site's validation split. ``generation`` is the one that peers know; a restored backup continues in
    the folder of the former generation, which contains the ``journal``.
    """

    journal: Path
    setting: WorkerSetting
    checkpoint: str
    sources: tuple[Source, ...]
    generation: int
    committed: int
    best: BestRound | None = None
    validation_samples: int = 0
    is_best: bool = False

    @property
    def choice(self) -> str:
        """The reason for the choice of this state: ``best`` with the metric and its value, else empty."""
        if not self.is_best or self.best is None:
            return ""
        samples = f" on {self.validation_samples} samples" if self.validation_samples else ""
        return f"the best of its evaluated rounds by {metric_title(self.best.metric)}, {self.best.value:.4f}{samples}"

    def document(self) -> dict[str, Any]:
        """Return the JSON values ``setting``, ``state`` and ``sources``, for a process with torch."""
        return {"setting": to_json(self.setting), "state": self.checkpoint, "sources": to_json(self.sources)}


def read_newest(folder: SiteFolder, federation: FederationConfig, site: SiteConfig) -> ModelState:
    """Read the newest state of a site's newest generation from its journal, whether or not the daemon runs.

    Raise ``StateError`` if the site has no model yet.
    """
    number = max(folder.generations(), default=0)
    home = folder.generation(number)
    memory, sources = _recover(())
    if (home / "journal.db").exists():
        with contextlib.closing(Journal(home / "journal.db", read_only=True)) as journal:
            memory, sources = journal.fold(_recover)
    if not memory.state:
        raise errors.StateError(f"{folder.path} holds no model yet", f"run `mhfl-peer start --site {folder.site}`")
    setting = worker_setting(federation, site, folder.site, home=home, folder=folder.path)
    generation = max(memory.generation, number)
    return ModelState(
        home / "journal.db",
        setting,
        memory.state,
        sources,
        generation,
        memory.committed,
        memory.best,
        memory.samples.get("validation", 0),
    )


def _recover(stored: Iterable[site_memory.Row]) -> tuple[site_memory.Memory, tuple[Source, ...]]:
    """Return the site's memory, and the sources that the last committed round used."""
    rows = list(stored)
    return site_memory.recover(rows), site_memory.used_sources(rows)


@contextlib.contextmanager
def open_trained(folder: SiteFolder, round: Round = None) -> Iterator[tuple[FederationConfig, ModelState]]:
    """Yield the federation and a trained state of the site, whose configuration must be unchanged since the training.

    No certificate is needed, because nothing is sent. The state's files stay available inside the context, even if the
    daemon continues.

    Args:
        round: the round that finished the state, or ``best``; default: the newest.

    Raises:
        StateError: no round is finished, that round's weights were deleted, no round was evaluated
            on validation data, or the configuration has changed.
    """
    federation, site = FederationConfig.load(folder.federation_toml), SiteConfig.load(folder.site_toml)
    if not federation.plan.predicts:
        raise errors.StateError(
            f"the federation {federation.name} has no model: its method {federation.method.name} only counts",
            "`mhfl-peer statistics` shows what it counted; to train, found a federation with another method",
        )
    newcomers = MembershipFolder(folder.membership).newcomers(federation, folder.site)
    check_site(federation, site, folder.site, newcomers=newcomers)
    problem = find_change(folder, federation, site)
    if problem is not None:
        raise problem

    def finished() -> ModelState:
        newest = read_newest(folder, federation, site)
        if not newest.committed:
            raise errors.StateError(
                f"the model of {folder.site} is untrained: no round is finished", "see `mhfl-peer status`"
            )
        if round == "best":
            return _best(newest)
        return newest if round in (None, newest.committed) else _earlier(newest, round)

    with pinned(finished) as state:
        yield federation, state


def _best(newest: ModelState) -> ModelState:
    """Return the state of the best evaluated round; raise ``StateError`` if there is none, or its files are gone."""
    site, best = newest.setting.site_name, newest.best
    if best is None and not newest.validation_samples:
        raise errors.StateError(
            f"{site} has no validation data, by which a round could be the best",
            "take the last round; or set [data] validation_share in site.toml, and begin anew with `mhfl-peer start "
            "--resume fresh`",
        )
    if best is None:
        raise errors.StateError(
            f"no evaluated round of {site} has a main metric on its validation data",
            "wait for an evaluation: `evaluation_every` in federation.toml says how often there is one; or take the "
            "last round",
        )
    if not (newest.journal.parent / "checkpoints" / best.state / "record.json").exists():
        raise errors.StateError(f"the weights of {site} after round {best.round}, the best, are gone", "take the last")
    with contextlib.closing(Journal(newest.journal, read_only=True)) as journal:
        rows = list(journal.rows())
    ends = [index for index, (kind, number, _) in enumerate(rows) if kind == "committed" and number <= best.round]
    sources = site_memory.used_sources(rows[: ends[-1] + 1]) if ends else ()
    return dataclasses.replace(newest, checkpoint=best.state, sources=sources, committed=best.round, is_best=True)


def _earlier(newest: ModelState, round: int | None) -> ModelState:
    """Return the state after an earlier round; raise ``StateError`` if its checkpoint was deleted."""
    home = newest.journal.parent
    with contextlib.closing(Journal(newest.journal, read_only=True)) as journal:
        rows = list(journal.rows())
    states = {}
    for index, (kind, number, body) in enumerate(rows):
        if kind == "committed" and (home / "checkpoints" / body["state"] / "record.json").exists():
            sources = site_memory.used_sources(rows[: index + 1])
            states[number] = dataclasses.replace(newest, checkpoint=body["state"], sources=sources, committed=number)
    if round not in states:
        rounds = ", ".join(map(str, sorted(states)))
        raise errors.StateError(
            f"the weights of {newest.setting.site_name} after round {round} are not kept "
            f"(those after {rounds or 'none'} are)",
            "name one of these, or the newest",
        )
    return states[round]


@contextlib.contextmanager
def pinned(look: Callable[[], ModelState]) -> Iterator[ModelState]:
    """Yield a state whose files stay available inside the context, linked into a private folder.

    A running daemon deletes its own files. The private folder lies in the site's folder, so that links take no space.

    Args:
        look: reads the state; called again if the daemon deleted its files before they were
            linked.

    Raises:
        StateError: the files were deleted each time.
    """
    for _ in range(TRIES):
        state = look()
        with _private_folder(Path(state.setting.base_folder)) as folder:
            try:
                _link_files(Path(state.setting.home), folder, state)
            except FileNotFoundError as error:
                missing = error.filename
                continue
            if look().checkpoint != state.checkpoint:  # its artifacts may have been deleted before they were linked
                missing = f"an artifact that {state.checkpoint!r} used"
                continue
            yield dataclasses.replace(state, setting=dataclasses.replace(state.setting, home=str(folder)))
            return
    raise errors.StateError(f"{missing} is not there", "restore the whole folder from one backup of this site")


@contextlib.contextmanager
def _private_folder(base: Path) -> Iterator[Path]:
    """Create a folder under ``HELD``, or a temporary one if this user may not write to the site's folder.

    This process locks it: unlocked folders belong to killed processes and are deleted.
    """
    parent = base / HELD
    with contextlib.ExitStack() as stack:
        try:
            parent.mkdir(mode=0o700, exist_ok=True)
            with _locked(parent, wait=True):  # no process may delete a folder between its creation and its lock
                for leftover in parent.iterdir():
                    with contextlib.suppress(OSError), _locked(leftover):
                        shutil.rmtree(leftover)
                folder = Path(tempfile.mkdtemp(dir=parent))
                stack.enter_context(_locked(folder))
        except OSError:
            folder = Path(tempfile.mkdtemp(prefix="mhfl-state-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder's lock; without ``wait``, raise ``BlockingIOError`` if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _link_files(home: Path, copy: Path, state: ModelState) -> None:
    """Link a state's checkpoint and the artifacts of its round, or copy them to another disk."""
    artifacts = (f"artifacts/{source.artifact.sha256}.safetensors" for source in state.sources)
    names = [name for name in artifacts if (home / name).exists()]  # most methods no longer need them
    names += [
        str(path.relative_to(home)) for path in (home / "checkpoints" / state.checkpoint).iterdir() if path.is_file()
    ]
    (copy / "artifacts").mkdir()
    (copy / "checkpoints" / state.checkpoint).mkdir(parents=True)
    for name in names:
        try:
            os.link(home / name, copy / name)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(home / name, copy / name)


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise ``SystemExit``, so that children end; has an effect in the main thread only."""
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


def run_module(module: str, request: Mapping[str, Any], *, name: str, limit_s: float | None = None) -> Any:
    """Run a module in a separate process, which may load torch, and return its JSON answer to a request.

    Args:
        module: run with ``python -m``; it reads the request from standard input and answers on
            standard output.

    Raises:
        WorkerFailed: the process ended without an answer; the message has its last line of standard
            error.
    """
    try:
        with exit_on_sigterm():
            process = subprocess.run(
                [sys.executable, "-P", "-m", module],  # do not import `models` or `peer` from the current folder
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise errors.WorkerFailed(f"{name} took over {limit_s:.0f} s", "look at the machine's load") from None
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        raise errors.WorkerFailed(
            f"{name} failed: {lines[-1] if lines else 'it said nothing'}", "correct what it names and run it again"
        )
    return json.loads(process.stdout)
