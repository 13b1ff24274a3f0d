"""``deploy/examples/plugin``, installed as a user installs it: its method, data and network at work, and missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from fakes.cli import run_process
from fakes.packages import forget_packages
from peer.core import site_memory
from peer.daemon.dispatch import now
from peer.lab.demo.local_federation import LocalFederation
from peer.site.identity import enrolment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "plugin"
ROSTER = "\n[[site]]"
REASON = "method 'fedper' comes with mhfl-example==1.0, which is not installed"
REMEDY = "get mhfl-example==1.0 from its authors, and install that file in the environment of mhfl-peer"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the package is installed in, which this process and those that it starts look into."""
    root = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, root / "source")  # setuptools builds in the folder of the source
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", root / "target", root / "source"]
    subprocess.run(command, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "target")
        patch.setenv("PYTHONPATH", str(root / "target"))
        yield root / "target"
    forget_packages()


@pytest.fixture(scope="module")
def federation(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Two sites of the example's experiment as a federation of daemons, founded and enrolled."""
    root = tmp_path_factory.mktemp("federation")
    run_process("simulate", EXAMPLE / "experiment.toml", "--out", root / "runs", "--dry-run", check=True)
    (run,) = (root / "runs" / "runs").glob("*.fedper.*")
    draft = (run / "federation.toml").read_text().partition(ROSTER)[0] + "\n[pace]\nlinger_s = 20.0\n"
    sites = {}
    for folder in sorted((run / "sites").iterdir())[:2]:
        text = (folder / "site.toml").read_text()
        text = text.replace('datalist = "', f'datalist = "{folder}/').replace('root = "', f'root = "{folder}/')
        sites[folder.name] = text
    with LocalFederation.create(root, draft, sites) as loopback:
        yield loopback


def head_and_body(federation: LocalFederation, name: str, tools: Any) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The tensors of the head of a site's last local model, and all others."""
    state = site_memory.recover(tools.rows(federation, name)).state
    home = federation.folder(name).generation(1)
    tensors = safetensors.torch.load_file(home / "checkpoints" / state / "dam.safetensors")
    content = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    head = {name: value for name, value in content.items() if name.startswith("fc.")}
    return head, {name: value for name, value in content.items() if name not in head}


def test_a_site_without_the_package_refuses_with_what_to_install(federation: LocalFederation, tmp_path: Path) -> None:
    folder = federation.folder("asia")
    authority = enrolment.Authority.load(federation.home.parent / "ca", now=now())
    request = enrolment.request(folder, authority.federation, authority.federation_toml, now=now())
    admitted = authority.admit(request.pem, fingerprint=request.fingerprint, now=now(), replace=True)
    bundle = tmp_path / "asia.bundle"
    bundle.write_bytes(admitted.bundle)
    here = ("--home", federation.home, "--site", "asia")
    commands: Mapping[str, tuple[str | Path, ...]] = {
        "federation": ("show", folder.federation_toml),
        "start": here,
        "check": (*here, "--json"),
        "site": ("join", "--home", federation.home, bundle),
    }
    without = {**os.environ, "PYTHONPATH": ""}
    answers = {name: run_process(name, *words, env=without) for name, words in commands.items()}
    for answer in answers.values():
        said = answer.stdout + answer.stderr
        assert REASON in said
        assert REMEDY in said
    codes = {name: answer.returncode for name, answer in answers.items()}
    assert codes == {"federation": 3, "start": 3, "check": 16, "site": 3}


def test_the_daemons_read_the_plan_without_torch(installed: Path) -> None:
    program = (
        "import sys; from peer.methods.registry import find_plan; find_plan('fedper', 'mhfl-example==1.0'); "
        "sys.exit(bool({'torch', 'monai', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_its_method_data_and_network_come_to_the_simulators_bits(federation, assert_simulated, tools) -> None:
    sites = federation.federation.roster.names
    tools.start(federation, sites)
    tools.finish_well(federation)
    assert_simulated(federation)
    for name in sites:
        record = tools.records(federation, name)[-1]
        assert (record["round"], record["contributors"], record["missing"]) == (3, list(sites), {})
    heads, bodies = zip(*(head_and_body(federation, name, tools) for name in sites), strict=True)
    assert all(bodies[0] == other for other in bodies[1:]), "bodies are averaged"
    assert all(heads[0] != other for other in heads[1:]), "heads stay"
