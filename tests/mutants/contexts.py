"""A pytest plugin that notes which test runs which line, or runs chosen tests only; and what it noted, merged.

``PYTEST_PLUGINS=mutants.contexts`` loads it before any conftest, in the workers of pytest-xdist, too.
``MUTANTS_CONTEXTS`` names the folder for what each process notes. ``MUTANTS_CHOSEN`` names a file with
the chosen tests.

The lines that a fixture of a class, module, package or session runs count for every test that uses it.
Lines that run in a process which a test starts are not seen.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("peer/core", "peer/net/transport", "peer/site/membership", "peer/site/records", "peer/audit")
Lines = dict[str, int]
MEMORY_BYTES_MAX = 12 << 30  # a mutant without end must not take all memory, nor the disk
FILE_BYTES_MAX = 8 << 30


class Recorder:
    """Notes the lines and the seconds of each test."""

    def __init__(self, folder: Path) -> None:
        import coverage

        self.folder, self.context = folder, ""
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.users: dict[str, set[str]] = defaultdict(set)
        include = [f"{package}/*" for package in PACKAGES]
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=include)
        self.coverage.set_option("run:core", "ctrace")
        self.coverage.set_option("run:relative_files", True)
        self.coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self.coverage.start()

    def switch(self, context: str) -> str:
        """Let the next lines count for a context; return the one before."""
        before, self.context = self.context, context
        self.coverage.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Generator[None, Any, Any]:
        """Let setup, call and teardown count for the test, and what earlier tests left in caches run again."""
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                self.users[fixture_context(definition)].add(item.nodeid)
        forget_cached()
        self.switch(item.nodeid)
        began_s = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.perf_counter() - began_s
            self.switch("")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Let the setup of a fixture that tests share count for all of them."""
        if fixturedef.scope == "function":
            return (yield)
        before = self.switch(fixture_context(fixturedef))
        try:
            return (yield)
        finally:
            self.switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that fails: it cannot tell a mutant."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write what this process noted."""
        self.coverage.stop()
        if not self.seconds:
            return
        data, lines = self.coverage.get_data(), defaultdict[str, dict[str, int]](dict)
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in {user for context in contexts for user in self.users.get(context, {context}) if user}:
                    lines[test][file] = lines[test].get(file, 0) | 1 << line
        masks = {test: {file: f"{mask:x}" for file, mask in files.items()} for test, files in lines.items()}
        noted = {"seconds": self.seconds, "failed": sorted(self.failed), "lines": masks}
        (self.folder / f"noted-{os.getpid()}.json").write_text(json.dumps(noted))


class Chooser:
    """Runs the tests that a file lists, in its order, and writes the first that fails into ``FILE.failed``."""

    def __init__(self, path: Path) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
        self.chosen = {nodeid: place for place, nodeid in enumerate(json.loads(path.read_text()))}
        self.failed = path.with_name(f"{path.name}.failed")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drop the other tests; where a mutant has renamed the cases of a chosen test, all its cases stay."""
        places = self.chosen.copy()
        for nodeid in self.chosen.keys() - {item.nodeid for item in items}:
            for item in items:
                if item.nodeid.partition("[")[0] == nodeid.partition("[")[0]:
                    places.setdefault(item.nodeid, self.chosen[nodeid])
        items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the first test that fails."""
        if report.failed and not self.failed.exists():
            self.failed.write_text(report.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before any conftest is imported."""
    if folder := os.environ.get("MUTANTS_CONTEXTS"):
        early_config.pluginmanager.register(Recorder(Path(folder)))
    if path := os.environ.get("MUTANTS_CHOSEN"):
        early_config.pluginmanager.register(Chooser(Path(path)))


def fixture_context(definition: pytest.FixtureDef[Any]) -> str:
    """Name the context of a fixture that tests share."""
    return f"fixture {definition.baseid}::{definition.argname}"


def forget_cached() -> None:
    """Empty the caches of the measured modules' functions."""
    names = tuple(f"{package.replace('/', '.')}." for package in PACKAGES)
    for module in [module for name, module in sys.modules.items() if name.startswith(names)]:
        for value in vars(module).values():
            if hasattr(value, "cache_clear") and not isinstance(value, type):
                value.cache_clear()


@dataclass(frozen=True)
class Contexts:
    """The tests that passed: the seconds of each, and the lines that it runs, bit n for line n of a file."""

    seconds: dict[str, float]
    lines: dict[str, Lines]

    def tests(self, wanted: Lines) -> set[str]:
        """List the tests that run one of the lines."""
        runs = (
            (test, [files.get(file, 0) & mask for file, mask in wanted.items()]) for test, files in self.lines.items()
        )
        return {test for test, common in runs if any(common)}

    def alone(self, *, by_file: bool = False) -> dict[str, Lines]:
        """Mark the lines that only one test runs, for each such test; or those of one file of tests alone."""
        groups: dict[str, Lines] = defaultdict(lambda: defaultdict(int))
        once, again = defaultdict[str, int](int), defaultdict[str, int](int)
        for test, files in self.lines.items():
            for file, mask in files.items():
                groups[test.partition("::")[0] if by_file else test][file] |= mask
        for files in groups.values():
            for file, mask in files.items():
                again[file] |= once[file] & mask
                once[file] |= mask
        return {
            name: {file: mask & ~again[file] for file, mask in files.items() if mask & ~again[file]}
            for name, files in groups.items()
        }


def merge(folder: Path, functions: Lines) -> Contexts:
    """Merge what all processes noted, of the lines within functions: others run once for all tests, at import."""
    contexts, failed = Contexts({}, {}), set[str]()
    for path in sorted(folder.glob("noted-*.json")):
        noted = json.loads(path.read_text())
        contexts.seconds.update(noted["seconds"])
        failed.update(noted["failed"])
        for test, files in noted["lines"].items():
            masks = {file: int(mask, 16) & functions.get(file, 0) for file, mask in files.items()}
            contexts.lines[test] = {file: mask for file, mask in masks.items() if mask}
    for test in failed:
        contexts.lines.pop(test, None)
    return contexts
