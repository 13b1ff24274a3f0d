"""deploy/verify_export.py: an outsider re-derives what a site states, and every change has its name."""

import base64
import contextlib
import datetime
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import draft, site_text
from peer.audit import evidence_files, verification
from peer.audit.evidence_files import LABEL
from peer.core.leak import Leak, ledger_facts
from peer.core.privacy import Spending, mu_of, spent_facts
from peer.lab.demo.local_federation import LocalFederation
from peer.privacy_budget import PrivacyBudget
from peer.site.identity import certificates
from peer.site.identity.certificates import Identity
from peer.site.records.journal import GENESIS, chain_hash
from peer.site.records.ledger import Ledger

SCRIPT = Path(__file__).parents[2] / "deploy" / "verify_export.py"
ROUNDS, STEPS, EPSILON, DELTA = 3, 4, 1.0, 1e-4
NOISE = {"mechanism": "noise", "epsilon": EPSILON, "delta": DELTA, "people": 100}
LEAK = Leak("loss", 0.54, members=150, others=100, detected=20, receiver_auc=0.55, all_auc=0.56)
Bodies = list[dict[str, Any]]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Asia and europe; asia has sent its model of three rounds with noise, and exported a file."""
    shared = {"name": "resnet5", "width": 4, "norm": "group"}
    text = draft("trial", method="fedavg", shared_model=shared, privacy=NOISE)
    sites = dict.fromkeys(("asia", "europe"), site_text())
    with LocalFederation.create(tmp_path_factory.mktemp("private"), text, sites) as loopback:
        asia, budget = loopback.folder("asia"), PrivacyBudget(loopback.home / ".privacy")
        sigma = (ROUNDS * STEPS) ** 0.5 / mu_of(EPSILON, DELTA)
        with contextlib.closing(Ledger(asia.egress_db)) as ledger:
            for round in range(1, ROUNDS + 1):
                budget.charge(f"{round}", "asia", STEPS / sigma**2, ["ann"], mu_max=1.0, steps=STEPS)
                known = budget.standing("asia", ["ann"])
                figures = spent_facts(Spending(known.mu, DELTA, EPSILON, steps=known.steps)) | ledger_facts(LEAK)
                transfer = {"purpose": "train", "kind": "model", "sha256": f"{round:064x}", "bytes": 64}
                intent = ledger.intend(peer="europe", round=round, generation=1, **transfer, **figures)
                ledger.settle(intent, bytes=64, outcome="complete")
            copy = {"peer": "asia", "purpose": "export", "kind": "onnx", "sha256": "ab" * 32, "bytes": 64}
            ledger.settle(ledger.intend(round=3, generation=1, **copy), bytes=64, outcome="complete")
        yield loopback


@pytest.fixture
def exported(private: LocalFederation, tmp_path: Path) -> Path:
    path = tmp_path / "asia.json"
    path.write_bytes(evidence_files.encode(verification.export(private.folder("asia"))))
    return path


@pytest.fixture
def federation(private: LocalFederation) -> Path:
    return private.folder("asia").federation_toml


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str], federation: Path) -> Callable[..., tuple[int, list[str]]]:
    """Returns the exit code, and the lines of the claims that are wrong."""
    main = runpy.run_path(str(SCRIPT))["main"]

    def run(path: Path, table: Path = federation) -> tuple[int, list[str]]:
        code = main(str(path), str(table))
        lines = capsys.readouterr().out.splitlines()
        return code, [line.removeprefix("WRONG  ") for line in lines if line.startswith("WRONG")]

    return run


def test_it_runs_where_this_program_is_not_and_says_what_holds(exported: Path, federation: Path) -> None:
    hide = "import runpy, sys; sys.modules.update(dict.fromkeys(('peer', 'models', 'losses', 'numpy', 'pydantic')))"
    run = f"{hide}; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-I", "-c", run, str(SCRIPT), str(exported), str(federation)]
    done = subprocess.run(command, cwd=exported.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    head = json.loads(exported.read_bytes())["head"]["hash"]
    signature, *others = done.stdout.splitlines()
    assert signature.startswith("holds  signature: asia of the federation ")
    assert others == [
        f"holds  ledger: 8 rows, of which 0 are not shown, with the head {head}",
        "holds  receivers: europe (3 artifacts)",
        f"holds  guarantee: epsilon 1.0000 of 1.0 (delta {DELTA}), no attack beyond AUC 0.5878",
        "holds  measured leak: 3 transfers of measured artifacts, AUC at most 0.5400",
    ]


def test_a_part_of_a_ledger_is_checked_as_far_as_it_is_shown(
    private: LocalFederation, tmp_path: Path, verify: Callable[..., Any]
) -> None:
    path = tmp_path / "part.json"
    path.write_bytes(evidence_files.encode(verification.export(private.folder("asia"), rounds=(2, 2))))
    assert verify(path) == (0, [])


def change_byte(export: dict[str, Any]) -> None:
    export["rows"][2]["body"] = export["rows"][2]["body"].replace('"bytes":64', '"bytes":65')


def remove_row(export: dict[str, Any]) -> None:
    del export["rows"][2]


def cut_tail(export: dict[str, Any]) -> None:
    del export["rows"][-2:]


def move_head(export: dict[str, Any]) -> None:
    export["head"]["hash"] = "0" * 64


def forge_begin(export: dict[str, Any]) -> None:
    export["before"]["hash"] = "1" * 64


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (change_byte, "ledger: row 3 was changed, or one before it was removed"),
        (remove_row, "ledger: row 3 is missing: row 4 stands there"),
        (cut_tail, "ledger: the rows end at row 6, not at the stated head"),
        (move_head, "ledger: the rows end at row 8, not at the stated head"),
        (forge_begin, "ledger: row 1 is not the first one"),
    ],
)
def test_a_change_on_the_way_is_named_and_breaks_the_signature(
    exported: Path, verify: Callable[..., Any], change: Callable[[dict[str, Any]], None], says: str
) -> None:
    export = json.loads(exported.read_bytes())
    change(export)
    exported.write_text(json.dumps(export))
    assert verify(exported) == (1, ["signature: InvalidSignature", says])


def test_another_federation_another_ca_and_another_sites_certificate_are_named(
    exported: Path, federation: Path, tmp_path: Path, verify: Callable[..., Any]
) -> None:
    text, other = federation.read_text(), tmp_path / "federation.toml"
    other.write_text(text.replace("rounds = 3", "rounds = 4"))
    code, (wrong,) = verify(exported, other)
    assert code == 1
    assert wrong.startswith("signature: federation.toml has the digest ")
    export = json.loads(exported.read_bytes())
    exported.write_text(json.dumps({**export, "site": "europe"}))
    assert verify(exported)[1][0] == "signature: the certificate names another site"
    _, other_ca = certificates.new_authority("trial", now=datetime.datetime.now(datetime.UTC))
    exported.write_text(json.dumps({**export, "certificate": certificates.certificate_pem(other_ca).decode()}))
    assert verify(exported) == (1, ["signature: InvalidSignature"])


def test_an_address_may_change(exported: Path, federation: Path, tmp_path: Path, verify: Callable[..., Any]) -> None:
    moved = tmp_path / "federation.toml"
    moved.write_text(federation.read_text().replace('address = "127.0.0.1', 'address = "asia.example'))
    assert verify(exported, moved) == (0, [])


def rewrite(path: Path, own: Identity, change: Callable[[Bodies], None]) -> None:
    """Write what a site that lies would: other rows, with right hashes and its own signature."""
    export = json.loads(path.read_bytes())
    bodies = [json.loads(row["body"]) for row in export["rows"]]
    change(bodies)
    head, export["rows"] = GENESIS, []
    for number, body in enumerate(bodies, start=1):
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        head = chain_hash(head, text)
        export["rows"].append({"seq": number, "body": text, "hash": head})
    export["head"] = {"count": len(bodies), "hash": head}
    del export["signature"]
    unsigned = json.dumps(export, sort_keys=True, separators=(",", ":")).encode("ascii")
    export["signature"] = base64.b64encode(certificates.sign(own.key, LABEL + unsigned)).decode("ascii")
    path.write_text(json.dumps(export))


def in_row(number: int, *path: str, value: Any) -> Callable[[Bodies], None]:
    def change(bodies: Bodies) -> None:
        place: Any = bodies[number - 1]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def less_than_before(bodies: Bodies) -> None:
    bodies[4]["spent"] = bodies[0]["spent"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (in_row(3, "peer", value="mars"), "receivers: row 3: 'mars' is no other member"),
        (in_row(3, "peer", value="asia"), "receivers: row 3: 'asia' is no other member"),
        (in_row(3, "spent", "epsilon", value=0.5), "guarantee: row 3: epsilon is 0.79"),
        (in_row(3, "spent", "epsilon", value=None), "guarantee: row 3: epsilon is 0.79"),
        (in_row(3, "spent", "mu", value=0.1), "guarantee: row 3: its steps give mu 0.256"),
        (in_row(3, "spent", "mu", value=float("nan")), "guarantee: row 3: its steps give mu 0.256"),
        (in_row(3, "spent", "steps", value=[]), "guarantee: row 3: its steps give mu 0.0, not 0.256"),
        (in_row(3, "spent", "delta", value=1e-3), "guarantee: row 3: delta 0.001 is not the federation's"),
        (in_row(5, "spent", "epsilon_max", value=0.9), "guarantee: row 5: epsilon 1.0000 may not leave"),
        (in_row(3, "spent", "auc_max", value=0.5), "guarantee: row 3: no AUC exceeds 0.57"),
        (less_than_before, "guarantee: row 5: less is spent than a round before"),
        (in_row(3, "leak", "low", value=0.53), "measured leak: row 3: the interval of AUC 0.54 is 0.46"),
        (in_row(3, "leak", "auc", value=0.99), "measured leak: row 3: the interval of AUC 0.99 is 0.91"),
        (in_row(3, "leak", value={"auc": 0.95, "low": 0.8768, "high": 1.0, "members": 150, "others": 100}),
         "measured leak: row 3: AUC 0.95 contradicts the guarantee's 0.57"),
    ],
)  # fmt: skip
def test_a_lie_of_the_site_is_named(
    private: LocalFederation, exported: Path, verify: Callable[..., Any], change: Callable[[Bodies], None], says: str
) -> None:
    ca_certificate, pki = private.federation.ca_certificate, private.folder("asia").pki
    own = Identity.load(pki, name=private.folder("asia").site, ca_certificate=ca_certificate, now=None)
    rewrite(exported, own, change)
    code, (wrong,) = verify(exported)
    assert code == 1
    assert wrong.startswith(says), wrong


def test_it_is_short_and_needs_no_more_than_it_says() -> None:
    lines = SCRIPT.read_text().splitlines()
    packages = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert packages - sys.stdlib_module_names == {"cryptography"}
    assert len(lines) < 150
