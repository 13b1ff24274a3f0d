"""The errors about missing Python packages, in a subprocess that cannot import them."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from fakes.drafts import EXPERIMENT
from peer.errors import ConfigError
from peer.extras import EXTRAS, SOURCE, missing_package, require_extra

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocked = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Blocker())
from peer.cli import main
main(prog_name="mhfl-peer")
"""


def without(blocked: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command where these modules, with commas between, are not installed."""
    command = [sys.executable, "-c", BLOCKED, blocked, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_table_is_that_of_pyproject() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    providers = importlib.metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        declared = {requirement.partition(">")[0] for requirement in extras[extra]}
        assert {name.lower() for module in modules for name in providers.get(module, [module])} >= declared
        assert len(modules) == len(declared)
        if extra != "ray":  # which only the nightly tests install
            require_extra(extra, "what needs it")  # is content where all is installed


def test_an_error_of_a_wrapped_import_names_the_module() -> None:
    cause = ModuleNotFoundError("No module named 'PIL.Image'", name="PIL.Image")
    wrapper = ImportError("a reader is missing")
    wrapper.__cause__ = cause
    error = missing_package(wrapper, "reading a.png")
    assert error.message == "reading a.png needs the Python package PIL: No module named 'PIL.Image'"
    assert error.remedy == "run `pip install pillow`"
    told = missing_package(ImportError("from x import y (No module named 'einops')\nTraceback ..."), "the network")
    assert str(told) == "the network needs the Python package einops, not installed here; run `pip install einops`"
    nameless = missing_package(ImportError("libGL.so.1 is not there"), "reading a.png")
    assert str(nameless).startswith("reading a.png needs a Python package: libGL.so.1 is not there; install")


@pytest.mark.parametrize(
    ("blocked", "words", "extra"),
    [
        ("joblib,sklearn", "simulate {0}/trial.toml --out {0}/out", "research"),
        ("joblib,sklearn", "simulate {0}/trial.toml --out {0}/out --dry-run", "research"),
        ("matplotlib", "report {0}", "research"),
        ("pandas", "report {0}", "research"),
        ("scipy", "demo --out {0}/out", "data"),
        ("scipy", "data prepare lidc --out {0}/out", "data"),
        ("sklearn", "data prepare digits --out {0}/out", "research"),
        ("onnxruntime", "predict --model {0}/model.onnx {0} --out {0}/out", "export"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(blocked: str, words: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "trial.toml").write_text(EXPERIMENT)
    ended = without(blocked, *(word.format(tmp_path) for word in words.split()))
    assert (ended.returncode, ended.stdout) == (ConfigError.exit_code, ""), ended.stderr
    assert blocked.replace(",", ", ") in ended.stderr
    assert ended.stderr.endswith(f"; run `pip install '{SOURCE}[{extra}]'`\n")
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_package_that_reads_images_is_missing_and_not_the_images(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    entry = {"image": "a.png", "label": 0}
    (tmp_path / "datalist.json").write_text(json.dumps({"training": [entry], "test": [entry]}))
    ended = without("PIL", "data", "validate", tmp_path / "datalist.json")
    assert ended.returncode == ConfigError.exit_code
    assert ended.stderr == (
        "mhfl-peer: reading .png files needs the Python package PIL: No module named 'PIL'; run `pip install pillow`\n"
    )
