"""The files to run and watch a site fit the program, and the tools that read them find no error."""

import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from peer.core.limits import CONNECTIONS_MAX, DESCRIPTORS_RESERVED
from peer.core.roster import SiteName
from peer.daemon.metrics import METRICS
from peer.errors import EXIT_CODES
from peer.site.config.schema import FederationConfig, SiteConfig, check_site
from peer.site.config.site_folder import SiteFolder, write_atomically
from peer.site.identity import enrolment

PROMETHEUS, GRAFANA = Path("deploy", "prometheus"), Path("deploy", "grafana", "mhfl-peer.json")
SYSTEMD, KUBERNETES = Path("deploy", "systemd"), Path("deploy", "kubernetes")
PROCESS = frozenset(
    f"process_{name}"
    for name in ("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "start_time_seconds", "open_fds")
)
"""The metrics that ``prometheus_client`` has of a process; those of the worker have a prefix."""
TARGET = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""
SELECTOR = re.compile(r"\b((?:mhfl_|process_)\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
WAITS = "waiting for the bundle: send this request to the founder, and read the fingerprint out over the telephone\n"
VERSION = "1.34"
"""The version of Kubernetes; the newest field, unhealthyPodEvictionPolicy, came with 1.31."""


def rules(root: Path) -> list[dict[str, Any]]:
    """Every alert rule."""
    groups = yaml.safe_load((root / PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(root: Path) -> list[dict[str, Any]]:
    """Every panel of the dashboard."""
    panels: list[dict[str, Any]] = json.loads((root / GRAFANA).read_text())["panels"]
    return panels


def expressions(root: Path) -> Iterator[tuple[str, str]]:
    """The title of each alert, panel or annotation, and its expression."""
    for rule in rules(root):
        yield rule["alert"], rule["expr"]
    for panel in panels(root):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for note in json.loads((root / GRAFANA).read_text())["annotations"]["list"]:
        yield note["name"], note["expr"]


def test_rules_and_dashboard_ask_only_for_what_a_daemon_shows(root: Path) -> None:
    wrong = []
    for where, expression in expressions(root):
        for name, matchers in SELECTOR.findall(expression):
            if name.removeprefix("mhfl_worker_") in PROCESS:
                known: frozenset[str] = TARGET
            elif name in METRICS:
                known = TARGET | set(METRICS[name].labels)
            else:
                wrong.append(f"{where}: there is no {name}")
                continue
            labels = set(MATCHER.findall(re.sub(r'"[^"]*"', "", matchers)))
            wrong += [f"{where}: {name} has no label {label}" for label in labels - known]
    assert not wrong, "\n".join(wrong)


def test_every_alert_says_what_it_is_and_is_explained_and_tried(root: Path) -> None:
    explained = set(re.findall(r"^### (\w+)$", (root / PROMETHEUS / "README.md").read_text(), re.MULTILINE))
    tried = set(re.findall(r"\bMhfl[A-Za-z]+\b", (root / PROMETHEUS / "alerts_test.yml").read_text()))
    names = [rule["alert"] for rule in rules(root)]
    assert sorted(set(names)) == sorted(names)
    assert set(names) == explained == tried
    for rule in rules(root):
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"deploy/prometheus/README.md#{rule['alert'].lower()}"


def promtool(root: Path, *arguments: str | Path) -> None:
    """Run promtool in the folder of the rules; show its output if it fails."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    finished = subprocess.run([program, *arguments], cwd=root / PROMETHEUS, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_promtool_accepts_configuration_and_rules_and_their_tests_pass(root: Path) -> None:
    promtool(root, "check", "config", "prometheus.yml")
    promtool(root, "test", "rules", "alerts_test.yml")


def test_promtool_accepts_every_expression_of_the_dashboard(root: Path, tmp_path: Path) -> None:
    texts = [expression for _, expression in expressions(root)]
    for variable, value in (("$site", "here"), ("$__rate_interval", "1m"), ("$__range", "1h")):
        texts = [text.replace(variable, value) for text in texts]
    recorded = [{"record": f"r{number}", "expr": text} for number, text in enumerate(texts)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool(root, "check", "rules", "--lint=none", tmp_path / "rules.yml")


def test_the_dashboard_can_be_imported_anywhere(root: Path) -> None:
    dashboard = json.loads((root / GRAFANA).read_text())
    assert dashboard["id"] is None
    assert "uid" not in dashboard
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert "(?<value>" in variables["site"]["regex"]
    shown = panels(root)
    assert len({panel["id"] for panel in shown}) == len(shown)
    sources = [panel["datasource"] for panel in shown if "datasource" in panel]
    sources += [target["datasource"] for panel in shown for target in panel.get("targets", ())]
    assert {source["uid"] for source in sources} == {"${datasource}"}
    rows = [panel["title"] for panel in shown if panel["type"] == "row"]
    assert rows == [
        "Federation at a glance", "Whom we wait for", "Training", "Transfers and egress",
        "Certificates, disk, daemon",
    ]  # fmt: skip
    cells = [(x, y) for panel in shown for x, y in area(panel["gridPos"])]
    assert len(set(cells)) == len(cells), "panels overlap"


def area(position: dict[str, int]) -> Iterable[tuple[int, int]]:
    """The cells of the grid that a panel covers."""
    x, y = position["x"], position["y"]
    assert x + position["w"] <= 24
    columns, lines = range(x, x + position["w"]), range(y, y + position["h"])
    return [(x, y) for x in columns for y in lines]


def unit(root: Path, name: str = "mhfl-peer@.service") -> dict[str, list[str]]:
    """Setting of a unit file -> its values."""
    settings: dict[str, list[str]] = {}
    for line in (root / SYSTEMD / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(key, []).append(value)
    return settings


@pytest.mark.parametrize("gpu", [False, True])
def test_systemd_accepts_the_unit_and_finds_it_confined(root: Path, tmp_path: Path, gpu: bool) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    installed = tmp_path / "mhfl-peer@europe.service"
    text = (root / SYSTEMD / "mhfl-peer@.service").read_text()
    installed.write_text(text.replace("/opt/mhfl/bin/mhfl-peer", shutil.which("true") or "/bin/true"))
    if gpu:
        shutil.copytree(root / SYSTEMD / "mhfl-peer@.service.d", tmp_path / "mhfl-peer@europe.service.d")
    verified = subprocess.run([program, "verify", installed], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    command = [program, "security", "--offline=true", "--threshold=20", "--no-pager", installed]
    rated = subprocess.run(command, capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", rated.stdout)
    stated = (root / SYSTEMD / ("mhfl-peer@.service.d/gpu.conf" if gpu else "mhfl-peer@.service")).read_text()
    assert f"says {exposure[1]}" in re.sub(r"\n# ", " ", stated)


def test_the_unit_starts_what_the_program_understands(root: Path) -> None:
    service = unit(root)
    assert service["Type"] == ["notify"]
    assert {int(code) for code in service["RestartPreventExitStatus"][0].split()} <= EXIT_CODES.keys()
    assert service["WatchdogSec"]
    assert service["StartLimitIntervalSec"] == ["0"], "five failures of a full disk must not end a site for good"
    assert service["MemoryMax"] == ["90%"]
    assert int(service["TasksMax"][0]) <= 4096
    assert int(service["LimitNOFILE"][0]) >= CONNECTIONS_MAX + DESCRIPTORS_RESERVED
    user = (root / SYSTEMD / "mhfl-peer.sysusers").read_text().splitlines()[-1].split()
    assert ["u", *service["User"]] == user[:2]


def documents(root: Path) -> dict[str, dict[str, Any]]:
    """Kind -> object of the base; of several objects of a kind, the last."""
    objects = {}
    for path in sorted((root / KUBERNETES / "base").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            objects[document["kind"]] = document
    return objects


def test_every_file_of_the_base_is_named_and_there(root: Path) -> None:
    base = root / KUBERNETES / "base"
    listed = yaml.safe_load((base / "kustomization.yaml").read_text())
    scripts = [name for generator in listed["configMapGenerator"] for name in generator["files"]]
    there = {path.name for path in base.iterdir()} - {"kustomization.yaml"}
    assert {*listed["resources"], *scripts} == there
    assert all((base / name).stat().st_mode & stat.S_IXUSR for name in scripts)


def test_the_pod_is_confined_and_watched(root: Path) -> None:
    objects = documents(root)
    spec = objects["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    assert spec["replicas"] == 1
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    mounted = {volume["name"] for volume in pod["volumes"]} | {"state"}
    for container in (*pod["initContainers"], *pod["containers"]):
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= mounted
    (daemon,) = pod["containers"]
    scratch = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume}
    assert all(limits["sizeLimit"] for limits in scratch.values())
    assert daemon["livenessProbe"]["exec"]["command"] == ["mhfl-peer", "health"]
    assert {port["name"]: port["containerPort"] for port in daemon["ports"]} == {"peers": 7443, "metrics": 9464}
    assert pod["terminationGracePeriodSeconds"] >= 90
    assert objects["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_every_selector_finds_the_pod(root: Path) -> None:
    objects = documents(root)
    labels = objects["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert labels
    assert objects["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_nobody_but_peers_and_monitoring_is_let_in(root: Path) -> None:
    policy = documents(root)["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    peers, monitoring = policy["ingress"]
    assert [port["port"] for port in peers["ports"]] == [7443]
    assert all("ipBlock" in source for source in peers["from"])
    assert [port["port"] for port in monitoring["ports"]] == [9464]
    assert all("namespaceSelector" in source for source in monitoring["from"])


def test_the_example_s_configuration_fits_the_pod(root: Path) -> None:
    site = SiteConfig.load(root / KUBERNETES / "europe" / "site.toml")
    check_site(FederationConfig.load(root / "deploy" / "examples" / "federation.toml"), site, SiteName("europe"))
    assert site.listen.endswith(":7443")
    assert site.metrics.listen.endswith(":9464")


@pytest.mark.e2e
def test_a_pod_enrols_its_site_once_and_takes_a_new_configuration(root: Path, tmp_path: Path) -> None:
    """Run the script that a pod runs before its daemon, with the pod's folders."""
    draft = (root / "deploy" / "examples" / "federation.toml").read_text()
    authority = enrolment.Authority.create(tmp_path / "ca", draft, "the draft", now=datetime.now(UTC))
    etc = tmp_path / "etc"
    for name in ("federation", "site", "bundle", "tmp"):
        (etc / name).mkdir(parents=True)
    (etc / "federation" / "federation.toml").write_text(authority.federation_toml)
    (etc / "site" / "site.toml").write_text('listen = "0.0.0.0:7443"\n')
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {
        "SITE": "europe", "MHFL_HOME": str(tmp_path / "state"), "MHFL_ETC": str(etc), "TMPDIR": str(etc / "tmp"),
    }  # fmt: skip
    command = ["sh", str(root / KUBERNETES / "base" / "enrol.sh")]
    running = {"env": {**os.environ, "PATH": programs, **settings}, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **running) as pod:
        log = "".join(itertools.takewhile(WAITS.__ne__, pod.stdout))  # ends with a script that fails, too
        fingerprint = re.search(r"\b[0-9a-f]{2}(:[0-9a-f]{2}){31}\b", log)
        assert fingerprint is not None, log
        request = log[log.index("-----BEGIN CERTIFICATE REQUEST") :].encode()
        admitted = authority.admit(request, fingerprint=fingerprint[0], now=datetime.now(UTC))
        write_atomically(etc / "bundle" / "europe.bundle", admitted.bundle)
        pod.communicate(timeout=30)
    folder = SiteFolder(tmp_path / "state", "fedasd", SiteName("europe"))
    assert pod.returncode == 0
    assert folder.site_toml.read_text() == 'listen = "0.0.0.0:7443"\n'
    certificate = (folder.pki / "cert.pem").read_bytes()
    (etc / "site" / "site.toml").write_text('listen = "0.0.0.0:7444"\n')
    again = subprocess.run(command, capture_output=True, **running)
    assert (again.returncode, again.stderr) == (0, "")
    assert "7444" in folder.site_toml.read_text()
    assert (folder.pki / "cert.pem").read_bytes() == certificate


def test_what_kustomize_makes_of_it_is_what_kubernetes_knows(root: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    import kubernetes_validate  # compiles grammars for seconds

    built = subprocess.run([kubectl, "kustomize", root / KUBERNETES / "europe"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    objects = list(yaml.safe_load_all(built.stdout))
    by_kind = {document["kind"]: document for document in objects}
    assert by_kind["StatefulSet"]["metadata"]["name"] == "europe-site"
    pod = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert {"name": "SITE", "value": "europe"} in container["env"]
    for document in objects:
        kubernetes_validate.validate(document, VERSION, strict=True)
