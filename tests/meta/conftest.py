"""The repository as the subject of tests: its files, and its packages' parsed modules."""

import ast
import gc
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("losses", "models", "peer")
GENERATED = re.compile(r"_pb2\.pyi?$")


@dataclass(frozen=True)
class Module:
    """One hand-written module of the three packages."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def where(self) -> str:
        """The path from the root, for error messages."""
        return self.path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[Path]:
    """The files that git tracks, or would track once added, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout, so nothing says which files belong to it")
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = sorted({Path(name) for name in listed.split("\0") if name})
    return [path for path in paths if (ROOT / path).is_file()]


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    """Every module of ``losses``, ``models`` and ``peer`` except the generated ones."""
    parsed = [
        Module(dotted(path.relative_to(ROOT)), path, ast.parse(path.read_text("utf-8")))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not GENERATED.search(path.name)
    ]
    gc.freeze()  # 800,000 objects that stay: each stage of a trainer that a later test runs would pass over them
    return parsed


def imported(tree: ast.Module, known: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each module that the source imports, also inside functions, with the line of the import.

    ``from a import b`` imports ``a.b`` where that is a module, else ``a``.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides where it points"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield (name if name in known else str(node.module)), node.lineno


@pytest.fixture(scope="session")
def edges(modules: list[Module]) -> list[tuple[Module, str, int]]:
    """(importing module, imported module, line)."""
    names = {module.name for module in modules} | {"peer.pb.peer_pb2"}
    return [(module, target, line) for module in modules for target, line in imported(module.tree, names)]


@dataclass(frozen=True)
class Distributions:
    """A wheel and an sdist."""

    wheel: Path
    sdist: Path


EPOCH = 1_700_000_000


@pytest.fixture(scope="session")
def release() -> ModuleType:
    """The module of ``make dist``."""
    spec = importlib.util.spec_from_file_location("deploy_release", ROOT / "deploy" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def build(release: ModuleType, files: list[Path]) -> Callable[[Path], Distributions]:
    """Builds a clean copy of the repository's files, in a folder that does not exist yet."""

    def build(folder: Path) -> Distributions:
        for path in files:
            (folder / "source" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, folder / "source" / path)
        (folder / "out").mkdir()
        return Distributions(*release.build_distributions(folder / "source", folder / "out", EPOCH))

    return build


@pytest.fixture(scope="session")
def distributions(build: Callable[[Path], Distributions], tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Wheel and sdist of the repository's files."""
    return build(tmp_path_factory.mktemp("distributions") / "one")


def dotted(path: Path) -> str:
    """The import name of a module's path from the root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
