"""Real daemons, real TLS, real workers on small synthetic volumes."""

import functools
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from fakes.datasets import write_cubes
from fakes.warm import Warm
from peer.core import site_memory
from peer.core.roster import SiteName
from peer.daemon import startup
from peer.errors import DaemonDown
from peer.lab.demo.local_federation import LocalFederation
from peer.lab.experiments.simulation import Simulation
from peer.methods.registry import PLANS
from peer.site.identity.noise_key import generation_noise_key, read_noise_key
from peer.site.records.history import committed_rounds
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger
from peer.train.data.datalist import inspect_datalist
from peer.train.public_set import digest_images

SITES = ("asia", "europe", "africa")
END_S = 240.0
DAEMON = Path(__file__).parents[1] / "fakes" / "daemon.py"
DRAFT = """
name = "trial"
rounds = {rounds}
{top}
[task]
kind = "{kind}"
spatial_dims = 3
in_channels = 1
classes = 2
[method]
name = "{method}"
{parameters}
{stages}
{shared}
[pace]
linger_s = {linger_s}
{pace}
"""
STAGES = "[stages.train]\ncount = {steps}\nlearning_rate = 1e-3"
SITE = """
[data]
datalist = "{datalist}"
{public}
input_size = [12, 12, 12]
[model]
{model}
[training]
device = "cpu"
checkpoint_s = {checkpoint_s}
"""
PATIENT = "silence_s = 300\nwait_max_s = 300\ndeadline_floor_s = 300\nbeat_s = 0.5"
"""No site counts as silent or late while it is stopped or starts again, however slow the machine is."""
MODEL = 'name = "resnet10"\n[model.parameters]\nwidth = {width}\nstem_stride = 2'


@pytest.fixture(scope="session")
def warm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], type[LocalFederation]]]:
    """Federations of real daemons with this worker; a process forks both that has imported what they import."""
    folder = tmp_path_factory.getbasetemp()
    warm = Warm(folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder)

    def make(worker: str) -> type[LocalFederation]:
        class WarmLoopback(LocalFederation):
            program = (str(DAEMON), json.dumps(warm.command(worker)))

            def execute(self, command: Sequence[str], output: BinaryIO, environment: Mapping[str, str]) -> Any:
                return warm.start(command, output, environment)

        return WarmLoopback

    yield make
    warm.close()


@pytest.fixture(scope="session")
def warm(warm_daemons: Callable[[str], type[LocalFederation]]) -> type[LocalFederation]:
    """Federations of real daemons with real workers that start at once."""
    return warm_daemons("peer.train.worker")


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory, warm: type[LocalFederation]) -> Callable[..., LocalFederation]:
    """Found and enrol a federation of small sites with three widths; ``cold`` starts them as an operator does."""

    def make(
        *,
        sites: tuple[str, ...] = SITES,
        rounds: int = 5,
        steps: int = 4,
        method: str = "fedskd",
        kind: str = "classification",
        parameters: str = "",
        pace: str = PATIENT,
        top: str = "",
        site: str = "",
        checkpoint_s: float = 300,
        linger_s: float = 20,
        stages: str = "",
        shared: str = "",
        models: Mapping[str, str] | None = None,
        cold: bool = False,
    ) -> LocalFederation:
        root = tmp_path_factory.mktemp("federation")
        texts, public = {}, ""
        if PLANS[method].public:
            path = write_cubes(root / "data" / "public", seed=len(sites))
            public = f'public = "{path}"'
            parameters += f'public_sha256 = "{digest_images(inspect_datalist(path).training)}"'
        for index, name in enumerate(sites):
            datalist = write_cubes(root / "data" / name, seed=index, masks=kind == "segmentation")
            model = (models or {}).get(name, MODEL.format(width=8 - index))
            keys = {"datalist": datalist, "public": public, "model": model, "checkpoint_s": checkpoint_s}
            texts[name] = SITE.format(**keys) + site
        stages = stages or STAGES.format(steps=steps)
        waits = {"linger_s": linger_s, "pace": pace}
        what = {"method": method, "kind": kind, "parameters": parameters}
        draft = DRAFT.format(rounds=rounds, stages=stages, shared=shared, top=top, **what, **waits)
        return (LocalFederation if cold else warm).create(root, draft, texts)

    return make


def copy_of(loopback: LocalFederation, home: Path) -> LocalFederation:
    """Copy an enrolled federation into another folder."""
    shutil.copytree(loopback.home, home)
    return type(loopback)(home, loopback.federation)


def transfers(loopback: LocalFederation, name: str) -> list[dict[str, Any]]:
    """Return the transfers in a site's ledger, which must be whole."""
    ledger = Ledger(loopback.folder(name).egress_db, read_only=True)
    try:
        assert ledger.verify() == []
        return list(ledger.transfers())
    finally:
        ledger.close()


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Callable[[LocalFederation], LocalFederation]]:
    """The same enrolled federation in another folder; its daemons are stopped at the end."""
    copies: list[LocalFederation] = []

    def copy(loopback: LocalFederation) -> LocalFederation:
        copies.append(copy_of(loopback, tmp_path / f"sites-{len(copies)}"))
        return copies[-1]

    yield copy
    for loopback in copies:
        loopback.__exit__()


def wait_until(
    holds: Callable[[], Any], *, limit_s: float = END_S, what: Any = "it never happened", every_s: float = 0.05
) -> Any:
    """Poll until something holds; real processes have no other clock that a test could watch."""
    end_s = time.monotonic() + limit_s
    down = None
    while time.monotonic() < end_s:
        try:
            result = holds()
        except DaemonDown as error:
            result, down = None, error
        if result:
            return result
        time.sleep(every_s)
    raise AssertionError(what() if callable(what) else what) from down


def start(loopback: LocalFederation, names: Iterable[str], *options: str) -> None:
    """Start the daemons of these sites."""
    for name in names:
        loopback.start(name, *options)


def until_done(loopback: LocalFederation, names: Iterable[str], *, limit_s: float = END_S) -> None:
    """Wait until the rounds of each site are over. A daemon that ends meanwhile fails the test at once."""

    def is_done(name: str) -> bool:
        assert loopback.daemons[SiteName(name)].poll() is None, loopback.console(name)[-6000:]
        return bool(loopback.show(name, "status")["phase"] == "done")

    for name in names:
        wait_until(
            functools.partial(is_done, name),
            limit_s=limit_s,
            what=lambda name=name: loopback.console(name)[-6000:],
            every_s=0.5,
        )


def finish(loopback: LocalFederation, *, limit_s: float = END_S) -> dict[str, int | None]:
    """Wait for every daemon's end; the exit codes."""
    wait_until(
        lambda: all(daemon.poll() is not None for daemon in loopback.daemons.values()),
        limit_s=limit_s,
        what=lambda: "\n".join(f"--- {name}\n{loopback.console(name)[-3000:]}" for name in loopback.daemons),
    )
    return {name: daemon.poll() for name, daemon in loopback.daemons.items()}


def finish_well(loopback: LocalFederation, **options: Any) -> None:
    """Wait for every daemon's end, without a fault."""
    codes = finish(loopback, **options)
    assert codes == dict.fromkeys(codes, 0), {name: loopback.console(name)[-2000:] for name in codes}


def rows(loopback: LocalFederation, name: str) -> list[tuple[str, int, Any]]:
    """A site's journal."""
    folder = loopback.folder(name)
    numbers = folder.generations()
    path = folder.generation(numbers[-1]) / "journal.db" if numbers else None
    if path is None or not path.exists():
        return []
    journal = Journal(path, read_only=True)
    try:
        return list(journal.rows())
    finally:
        journal.close()


def records(loopback: LocalFederation, name: str) -> list[dict[str, Any]]:
    """A site's committed rounds."""
    return [dict(committed.document()) for committed in committed_rounds(rows(loopback, name))]


def weights(home: Path, state: str) -> dict[str, str]:
    """Digests of every network of a checkpoint, and of its optimiser's moments."""
    files = sorted((home / "checkpoints" / state).glob("*.safetensors"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def assert_simulated(tmp_path: Path) -> Callable[[LocalFederation], None]:
    """Runs the same federation in memory, of the same files and round key; every network has the same bits."""

    def run(loopback: LocalFederation) -> None:
        noise_keys = {}
        for name in loopback.federation.roster:
            folder = loopback.folder(name)
            (tmp_path / "sites" / name).mkdir(parents=True)
            shutil.copy(folder.site_toml, tmp_path / "sites" / name)
            shutil.copy(folder.federation_toml, tmp_path)
            if loopback.federation.noise is not None:
                secret = read_noise_key(folder.pki)
                noise_keys[name] = generation_noise_key(secret, loopback.federation.digest, 1)
        simulation = Simulation(tmp_path, round_key=startup.load(folder)[2].round_key, noise_keys=noise_keys)
        simulation.run()
        for name in loopback.federation.roster:
            state = site_memory.recover(rows(loopback, name)).state
            real = weights(loopback.folder(name).generation(1), state)
            assert real
            assert real == weights(simulation.home(name), state), f"{name} has other weights"

    return run


@pytest.fixture(scope="session")
def tools() -> Any:
    """The functions above, for tests that are imported without their folder."""

    class Tools:
        wait_until = staticmethod(wait_until)
        start = staticmethod(start)
        until_done = staticmethod(until_done)
        finish = staticmethod(finish)
        finish_well = staticmethod(finish_well)
        rows = staticmethod(rows)
        records = staticmethod(records)
        copy_of = staticmethod(copy_of)
        transfers = staticmethod(transfers)
        sites = SITES

    return Tools
