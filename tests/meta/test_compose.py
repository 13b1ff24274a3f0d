"""The images and the test networks of deploy/, checked without running a container."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from peer.cli import PROGRAM
from peer.core.limits import CONNECTIONS_MAX, DESCRIPTORS_RESERVED
from peer.lab.demo.local_federation import free_ports
from peer.net.transport.proxy import Proxy, ProxyRefused
from peer.site.config.schema import FederationConfig, SiteConfig, check_site
from tests.meta.test_readme import problem, simple_commands

DEPLOY = Path("deploy")
NETWORK = DEPLOY / "network"
IMAGE_FOLDER = "/opt/network"
"""The folder of the image that has the files of deploy/network."""
LIMIT_S = 20.0
COMPOSE = ("docker", "podman-compose")
INSTRUCTION = re.compile(r"^([A-Z]+) +(.*)$")
COMMAND = re.compile(rf"(?:^|[;|&(] *)(?:exec +)?({PROGRAM} .*)$")
STAGE = re.compile(r"(\S+)(?: +AS +(\S+))?")


def parsed(name: str) -> dict[str, Any]:
    """A file of services."""
    return dict(yaml.safe_load((Path(__file__).parents[2] / DEPLOY / name).read_text()))


OPEN, CLOSED = parsed("compose.yaml"), parsed("compose.closed.yaml")
TROUBLE = parsed("compose.trouble.yaml")
"""What it adds to compose.yaml."""


@pytest.fixture(params=[OPEN, CLOSED], ids=["open", "closed"])
def either(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture(scope="module")
def stages(root: Path) -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage of the Dockerfile, the stage's own FROM first."""
    stages: dict[str, list[tuple[str, str]]] = {}
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (root / DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE))
    for line in text.splitlines():
        instruction = INSTRUCTION.match(line)
        assert instruction or not line.strip(), f"this line of the Dockerfile is not understood: {line}"
        if instruction is None:
            continue
        if instruction[1] == "FROM":
            stage = STAGE.fullmatch(instruction[2])
            assert stage, line
            stages[stage[2]] = []
        if stages:
            list(stages.values())[-1].append((instruction[1], instruction[2]))
    return stages


@pytest.fixture(scope="module")
def federation(root: Path) -> FederationConfig:
    """The network's draft."""
    return FederationConfig.load(root / NETWORK / "federation.toml")


def files_run(document: Any) -> Iterator[str]:
    """The files of deploy/network that services run."""
    for service in document["services"].values():
        for word in service.get("command", ()):
            if word.startswith(f"{IMAGE_FOLDER}/"):
                yield word.removeprefix(f"{IMAGE_FOLDER}/")


def hospitals(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Site -> the service that runs it."""
    services = compose["services"].values()
    return {s["command"][1]: s for s in services if s["command"][0] == f"{IMAGE_FOLDER}/site.sh"}


def test_there_is_one_service_for_each_site_of_the_draft(either: dict[str, Any], federation: FederationConfig) -> None:
    services = hospitals(either)
    assert set(services) == set(federation.roster)
    for site, service in services.items():
        assert either["services"][site] is service, "the service's name is the site's address"
        assert federation.addresses[site] == f"{site}:7443"
    for name in ("data", "founder"):
        named = either["services"][name]["command"][1:]
        assert [word for word in named if not word.startswith("relay=")] == list(federation.roster)


def test_no_container_has_more_than_it_needs(either: dict[str, Any]) -> None:
    added = {name: service for name, service in TROUBLE["services"].items() if name not in either["services"]}
    for name, service in {**either["services"], **added}.items():
        assert service["read_only"] is True, name
        assert service["mem_limit"], name
        assert service["pids_limit"] <= 4096, name
        assert service["ulimits"]["nofile"]["soft"] >= CONNECTIONS_MAX + DESCRIPTORS_RESERVED, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges"], name
        assert not service.keys() & {"privileged", "devices", "ports", "ipc", "pid"}, name
    assert all(service["user"] == "10001:10001" for service in either["services"].values())
    rights = {name: service.get("cap_add") for name, service in added.items()}
    assert rights == {"cut": ["NET_ADMIN"]}
    assert not any("cap_add" in service for service in either["services"].values())


def test_sites_are_looked_after_and_stopped_in_peace(either: dict[str, Any]) -> None:
    for service in hospitals(either).values():
        assert service["healthcheck"]["test"] == ["CMD", PROGRAM, "health"]
        assert service["restart"].startswith("on-failure")
        assert service["stop_grace_period"] == "30s"
        assert "depends_on" not in service, "podman restarts nothing whose dependencies have ended"


def test_sites_share_a_network_without_a_way_out_and_the_ca_has_none() -> None:
    assert OPEN["networks"] == {"federation": {"internal": True}}
    assert all(service["networks"] == ["federation"] for service in hospitals(OPEN).values())
    assert all(OPEN["services"][name]["network_mode"] == "none" for name in ("founder", "data"))


def test_only_the_enrolment_folder_is_shared(either: dict[str, Any]) -> None:
    mounts: dict[str, set[str]] = {}
    for name, service in either["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in either["volumes"], f"{name} mounts {source}, which is not one of the volumes"
            mounts.setdefault(source, set()).add(name)
    relays = {"gate"} & set(either["services"])
    assert mounts.pop("ca") == {"founder"}
    assert mounts.pop("enrolment") == {"founder", *hospitals(either), *relays}
    for name in (*hospitals(either), *relays):
        assert mounts.pop(f"{name}-state") == {name}
    for site in hospitals(either):
        assert mounts.pop(f"{site}-data") == {site, "data"}
        assert f"{site}-data:/data/{site}:ro" in either["services"][site]["volumes"]
    assert not mounts


def test_the_closed_network_joins_nobody_who_should_not_meet() -> None:
    services, networks = CLOSED["services"], CLOSED["networks"]
    assert all(network == {"internal": True} for network in networks.values())
    members = {
        network: {name for name, each in services.items() if network in each.get("networks", ())}
        for network in networks
    }
    assert members == {"between": {"africa", "america", "europe", "gate", "proxy"}, "hospital": {"asia", "proxy"}}
    assert all(services[name]["network_mode"] == "none" for name in ("founder", "data"))
    assert not any("ports" in service for service in services.values())


def test_the_closed_sites_listen_to_nobody_and_are_found_at_the_relay(
    root: Path, federation: FederationConfig, tmp_path: Path
) -> None:
    proxy, gate = CLOSED["services"]["proxy"], CLOSED["services"]["gate"]
    script = re.search("sed '(.+)'", (root / NETWORK / "site.sh").read_text())
    assert script is not None, "site.sh takes parts of the drafts"
    for site, service in hospitals(CLOSED).items():
        (folder,) = service["command"][2:]
        top = (root / NETWORK / folder / f"{site}.toml").read_text()
        draft = root / NETWORK / "sites" / f"{site}.toml"
        rest = subprocess.run(["sed", script[1], draft], check=True, stdout=subprocess.PIPE, text=True).stdout
        path = tmp_path / f"{site}.toml"
        path.write_text(top + rest)
        own = SiteConfig.load(path)
        check_site(federation, own, site)
        away = [other for other in ("africa", "asia") if other != site]
        assert own.addresses == dict.fromkeys(away, (f"relay {gate['command'][1]} gate:7443",))
        assert own.listen == ("127.0.0.1:7443" if site in ("africa", "asia") else "0.0.0.0:7443")
        assert own.connect.relays == (("gate gate:7443",) if site in ("africa", "asia") else ())
        assert own.data == SiteConfig.load(draft).data
        assert own.model == SiteConfig.load(draft).model
        assert "[metrics]" not in rest, "a site that cannot be dialled serves none"
        assert own.connect.proxy == (f"http://proxy:{proxy['command'][2]}" if site == "asia" else "none")
    assert proxy["command"][3] == "7443", "the port of every address that asia dials"


def test_what_the_services_run_exists_and_may_be_run(root: Path) -> None:
    named = {*files_run(OPEN), *files_run(TROUBLE), *files_run(CLOSED)}
    assert named == {"data.sh", "founder.sh", "site.sh", "killed.sh", "cut.py", "relay.sh", "proxy.py"}
    for name in named:
        assert (root / NETWORK / name).is_file()
    for script in (root / NETWORK).glob("*.sh"):
        runs = script.read_text().startswith("#!/bin/sh\n")
        assert os.access(script, os.X_OK) == runs, f"{script.name}: a script that is run is executable, a part is not"
        assert not runs or "\nset -eu\n" in script.read_text(), f"{script.name} goes on after errors"


def test_trouble_is_for_sites_of_the_network(federation: FederationConfig) -> None:
    killed, cut = TROUBLE["services"]["america"], TROUBLE["services"]["cut"]
    assert killed["command"][0].endswith("/killed.sh")
    assert killed["command"][1] == "america"
    assert killed.keys() == {"command"}, "the restart policy is the network's"
    mode, _, site = cut["network_mode"].partition(":")
    assert mode == "service"
    assert site in federation.roster
    assert all(int(s["command"][-2 if s is cut else -1]) < federation.rounds for s in (killed, cut))
    assert float(cut["command"][-1]) > federation.pace.silence_s, "nobody would notice"


def test_the_image_is_built_once_and_never_pulled(
    root: Path, either: dict[str, Any], stages: dict[str, list[tuple[str, str]]]
) -> None:
    services = {**TROUBLE["services"], **either["services"]}
    assert len({service["image"] for service in services.values()}) == 1
    builds = {name: service["build"] for name, service in services.items() if "build" in service}
    assert builds.keys() == {"data"}, "podman-compose builds for every service that says so, all at once"
    built = builds["data"]
    assert (root / DEPLOY / built["context"]).resolve() == root
    assert (root / built["dockerfile"]).is_file()
    assert built["target"] in stages
    declared = {value.partition("=")[0] for word, value in stages["dependencies"] if word == "ARG"}
    assert built["args"].keys() <= declared
    policies = {name: service["pull_policy"] for name, service in services.items()}
    assert policies == dict.fromkeys(services, "never"), "`up` would build again, or fetch somebody else's image"
    given = {"TORCH_INDEX", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "COMPARE_HASHES"}
    assert built["args"].keys() == given


def commands_in(script: Path) -> Iterator[list[str]]:
    """The words of every call of the program in a script."""
    for line in script.read_text().replace("\\\n", " ").splitlines():
        for match in COMMAND.finditer(line.strip()):
            words = shlex.split(re.split(r" (?:[0-9]?>|\|)", match[1])[0], comments=True)
            yield words[1:]


def test_every_command_in_the_scripts_can_be_typed(root: Path) -> None:
    commands = [(path.name, words) for path in sorted((root / NETWORK).glob("*.sh")) for words in commands_in(path)]
    assert {words[0] for _, words in commands} >= {"data", "federation", "site", "check", "start", "status", "relay"}
    wrong = [f"{name}: {shlex.join(words)}: {why}" for name, words in commands if (why := problem(words))]
    assert not wrong, "\n".join(wrong)


def test_every_command_in_the_readme_can_be_typed(root: Path) -> None:
    text = (root / NETWORK / "README.md").read_text()
    lines = [words for words in simple_commands(text) if words[0] in COMPOSE and "-f" in words]
    assert {words[0] for words in lines} == set(COMPOSE)
    for words in lines:
        files = {value for flag, value in pairwise(words) if flag == "-f"}
        assert all((root / name).is_file() for name in files), words
        inner = words[words.index(PROGRAM) + 1 :] if PROGRAM in words else None
        assert inner is None or problem(inner) is None, f"{shlex.join(words)}: {problem(inner)}"
        for name in (word for word in words if word.startswith(f"{IMAGE_FOLDER}/")):
            assert (root / NETWORK / name.removeprefix(f"{IMAGE_FOLDER}/")).is_file(), words


def test_the_readme_shows_every_limit_that_a_machine_may_refuse(root: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (root / NETWORK / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (limits,) = (service["ulimits"] for service in yaml.safe_load(block)["services"].values())
    assert limits.keys() == {"nofile", "nproc"}, "where one of them is missing, podman raises it"


def test_the_drafts_load_and_fit_each_other(root: Path, federation: FederationConfig) -> None:
    models = {}
    for site in federation.roster:
        path = root / NETWORK / "sites" / f"{site}.toml"
        own = SiteConfig.load(path)
        check_site(federation, own, site)
        models[site] = (own.model.name, *sorted(own.model.parameters.items()))
        assert own.listen == "0.0.0.0:7443"
        assert own.metrics.public
        assert all(f"/data/{site}/" in str(value) for value in (own.data.datalist, own.data.regions))
    assert len(set(models.values())) == len(models), "every site has a network of its own"
    assert len({name for name, *_ in models.values()}) >= 3, "and the networks are of several families"


def test_the_image_runs_as_nobody_and_looks_after_itself(stages: dict[str, list[tuple[str, str]]]) -> None:
    assert list(stages)[-1] == "runtime", "what `docker build` makes when no target is named"
    for name in ("runtime", "network"):
        assert ("USER", "10001:10001") in stages[name]
        after = stages[name][stages[name].index(("USER", "10001:10001")) :]
        assert not {"RUN", "COPY", "ADD"} & {word for word, _ in after}, f"{name}: root's work comes before USER"
        assert ("FROM", f"base AS {name}") in stages[name]
    runtime = stages["runtime"]
    assert ("VOLUME", "/var/lib/mhfl") in runtime
    assert ("EXPOSE", "7443 9464") in runtime
    assert any(word == "HEALTHCHECK" and f'CMD ["{PROGRAM}", "health"]' in value for word, value in runtime)
    assert ("ENTRYPOINT", f'["{PROGRAM}"]') in runtime
    assert any(word == "ENV" and "MHFL_HOME=/var/lib/mhfl" in value for word, value in stages["base"])


def test_the_base_image_is_an_argument_that_takes_a_digest(root: Path) -> None:
    """No digest stands in the file; every stage that starts from an image takes the argument as it is."""
    text = (root / DEPLOY / "Dockerfile").read_text()
    form = re.search(r"--build-arg PYTHON_IMAGE=(\S+)", text)
    assert form is not None
    assert re.fullmatch(r"[a-z0-9./-]+:[\w.-]+@sha256:<64", form[1])
    images = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    named = {line.split()[-1] for line in text.splitlines() if line.startswith("FROM ")}
    assert {image for image in images if image not in named} == {"${PYTHON_IMAGE}"}


def test_no_second_index_can_serve_a_package_of_any_name(root: Path) -> None:
    for name in ("Dockerfile", "release.py", "compose.yaml", "README.md"):
        assert "--extra-index-url" not in (root / DEPLOY / name).read_text(), name
    script = (root / DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    (torch,) = [line for line in script.splitlines() if "--index-url" in line and line.startswith("RUN")]
    assert "--no-deps" in torch
    assert torch.endswith(" torch")


def test_the_runtime_holds_no_data_and_nothing_of_the_test_network(stages: dict[str, list[tuple[str, str]]]) -> None:
    copied = [value for word, value in stages["runtime"] if word in ("COPY", "ADD")]
    assert copied == ["--from=dependencies /opt/mhfl /opt/mhfl", "--from=program /opt/program /opt/mhfl"]
    assert not any("data.txt" in value for name in ("dependencies", "program") for _, value in stages[name])


def test_the_build_context_has_the_sources_and_nothing_else(root: Path, files: list[Path]) -> None:
    lines = [line for line in (root / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "everything is left out but what is named"
    included = {line.removeprefix("!") for line in lines if line.startswith("!")}
    packages = {path.parts[0] for path in files if path.name == "py.typed"}
    assert included == {
        *packages, "LICENSE", "README.md", "constraints.txt", "constraints-hashes.txt", "deploy/**/*.md",
        "deploy/check_wheels.py", "deploy/examples/plugin", "deploy/network", "pyproject.toml", "requirements",
        "setup.py",
    }  # fmt: skip
    assert all(list(root.glob(name)) for name in included)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= included
    left_out = [line for line in lines[1:] if not line.startswith("!")]
    assert any(fnmatch("peer/core/__pycache__", pattern) for pattern in left_out)


@pytest.mark.parametrize("founded", [False, True])
def test_a_new_ca_discards_what_an_earlier_one_left_in_the_mail(root: Path, tmp_path: Path, founded: bool) -> None:
    program, mail, ca = tmp_path / PROGRAM, tmp_path / "mail", tmp_path / "ca"
    program.write_text(f"#!/bin/sh\nmkdir {ca}\necho new > {ca}/federation.toml\n")
    program.chmod(0o755)
    mail.mkdir()
    if founded:
        ca.mkdir()
        (ca / "federation.toml").write_text("old\n")
    for name in ("federation.toml", "asia.bundle", "gate.pem"):
        (mail / name).write_text("old\n")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MHFL_HOME": str(tmp_path), "ENROLMENT": str(mail)}
    script = root / NETWORK / "founder.sh"
    subprocess.run([script], env=environment, check=True, capture_output=True, timeout=LIMIT_S)
    assert (mail / "federation.toml").read_text() == ("old\n" if founded else "new\n")
    assert (mail / "asia.bundle").exists() == founded
    assert (mail / "gate.pem").exists() == founded


@pytest.mark.e2e
def test_founder_and_relay_certify_by_the_scripts_alone(root: Path, tmp_path: Path) -> None:
    """The real program, as the containers run it; the relay begins, and ends in peace."""
    program, mail = tmp_path / "bin" / PROGRAM, tmp_path / "mail"
    for folder in ("bin", "mail", "founder", "relay"):
        (tmp_path / folder).mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m peer.cli "$@"\n')
    program.chmod(0o755)
    (port,) = free_ports(1)
    common = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "ENROLMENT": str(mail)}
    scripts = {
        "founder": [root / NETWORK / "founder.sh", "relay=gate"],
        "relay": [root / NETWORK / "relay.sh", "gate", str(port)],
    }
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, command in scripts.items():
            environment = {**common, "MHFL_HOME": str(tmp_path / name)}
            processes[name] = subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.DEVNULL)
            stack.callback(processes[name].wait)
            stack.callback(processes[name].kill)
        assert processes["founder"].wait(60) == 0
        status = tmp_path / "relay" / "relay" / "status.json"
        end_s = time.monotonic() + 60
        while not status.exists():
            assert processes["relay"].poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert json.loads(status.read_text())["port"] == port
        processes["relay"].terminate()
        assert processes["relay"].wait(LIMIT_S) == 0


def test_the_proxy_joins_to_one_port_alone_and_leaves_when_it_is_stopped(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as peer:
        peer.settimeout(LIMIT_S)
        host, port = peer.getsockname()
        command = [sys.executable, str(root / NETWORK / "proxy.py"), "0", str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            through = Proxy(host, int(process.stdout.readline().split()[-1]))
            with through.connect(host, port, timeout_s=LIMIT_S) as caller, peer.accept()[0] as called:
                caller.sendall(b"there")
                assert called.recv(16) == b"there"
                called.sendall(b"and back")
                assert caller.recv(16) == b"and back"
            with pytest.raises(ProxyRefused, match="403"):
                through.connect(host, port + 1, timeout_s=LIMIT_S)
            peer.close()
            with pytest.raises(ProxyRefused, match="does not reach"):
                through.connect(host, port, timeout_s=LIMIT_S)
            process.terminate()
            assert process.wait(LIMIT_S) == 0


def test_whoever_cuts_the_network_leaves_when_the_container_is_stopped(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(LIMIT_S)
        # The script asks this proxy, and not the port that a real daemon may have.
        environment = {**os.environ, "http_proxy": f"http://127.0.0.1:{proxy.getsockname()[1]}", "no_proxy": ""}
        command = [sys.executable, str(root / NETWORK / "cut.py"), "99", "1"]
        with subprocess.Popen(command, env=environment) as process:
            proxy.accept()[0].close()
            process.terminate()
            assert process.wait(LIMIT_S) == 128 + signal.SIGTERM, "by itself: else it is killed, and mends nothing"
