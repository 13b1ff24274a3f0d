"""A client in another language, made from ``proto/`` alone, is the third site of a federation of two daemons.

``tests/node`` is that client: Node with ``@grpc/grpc-js``. Its packages are looked for in ``tests/node/node_modules``,
or in the folder that ``MHFL_NODE_MODULES`` names; ``npm install --no-package-lock`` in ``tests/node`` gets them.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fakes.cli import run_json
from fakes.drafts import DERANGEMENT, draft
from fakes.still import SITE, StillProcess
from peer.core import schedule
from peer.core.messages import SignedAmendment
from peer.core.roster import RoundKey, SiteName
from peer.daemon.dispatch import now
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.schema import FederationConfig
from peer.site.identity import certificates, enrolment
from peer.site.identity.certificates import read_round_key
from peer.site.membership.amendment import Amendment, Newcomer
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.round_keys import amendment_tag
from peer.site.membership.signatures import endorse_as_founder
from peer.site.records.journal import Journal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "tests" / "node"
PACKAGES = Path(os.environ.get("MHFL_NODE_MODULES") or CLIENT / "node_modules")
SITES = ("africa", "asia", "europe")
NODE, DAEMONS = SITES[0], SITES[1:]
ROUNDS = 2
MEGABYTES = 3
AMENDED = ("africa", "america", "asia", "europe")
"""The members from round 1 on, by the first amendment; nobody runs america."""


def missing() -> str:
    """What of Node is not here, in words."""
    if shutil.which("node") is None:
        return "node is not installed"
    wanted = json.loads((CLIENT / "package.json").read_text())["dependencies"]
    absent = [name for name in wanted if not (PACKAGES / name).is_dir()]
    return f"npm install --no-package-lock in tests/node: {', '.join(absent)} not in {PACKAGES}" if absent else ""


@pytest.fixture(autouse=True)
def node() -> None:
    if reason := missing():
        pytest.skip(reason)


def command(script: str, *arguments: object) -> list[str]:
    return ["node", str(CLIENT / script), *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "NODE_PATH": str(PACKAGES)}


@pytest.fixture
def loopback(tmp_path: Path) -> LocalFederation:
    text = draft("babel", seed=1, method={"name": "fedskd", "gamma": 1e-5}, schedule=DERANGEMENT)
    return LocalFederation.create(tmp_path, text, dict.fromkeys(SITES, SITE))


@pytest.fixture
def chain(loopback: LocalFederation) -> Chain:
    """A newcomer and another round key from round 1 on, and more rounds; both daemons have it on disk."""
    founder = enrolment.Authority.load(loopback.home.parent / "ca", now=now())
    config = founder.federation
    key = certificates.key_digest(certificates.new_key().public_key())
    america = Newcomer(SiteName("america"), key, "127.0.0.1:1")
    round_key = next(key for key in (RoundKey(bytes([seed]) * 32) for seed in range(256)) if _source(config, key))
    chain = Chain.of(config, ())
    for from_round, change in ((1, {"add": (america,)}), (2, {"settings": {"rounds": config.rounds + 1}})):
        body = Amendment(
            federation=config.digest,
            number=chain.head.number + 1,
            previous=chain.head.digest,
            from_round=from_round,
            issued=int(time.time()),
            round_key_tag=amendment_tag(round_key, config.digest),
            **change,
        ).encode()
        chain = chain.extended(SignedAmendment(body, (endorse_as_founder(founder.key, body),)))
    for name in DAEMONS:
        folder = MembershipFolder(loopback.folder(name).membership)
        folder.save_chain(chain)
        folder.save_round_keys({amendment_tag(round_key, config.digest): round_key})
    return chain


def _source(config: FederationConfig, round_key: RoundKey) -> str | None:
    """The daemon whose artifact the Node client's is in round 1 of the amended federation, if it is one."""
    digest, count = config.digest, len(AMENDED)
    order = schedule.order(round_key=round_key, federation_digest=digest, round=1, sites=count, kind="derangement")
    source = AMENDED[order[AMENDED.index(NODE)]]
    return source if source in DAEMONS else None


@pytest.fixture
def federation(loopback: LocalFederation, tools: Any) -> Iterator[tuple[LocalFederation, dict[str, StillProcess]]]:
    """Two daemons that have published their first artifact and wait for the third site."""
    daemons: dict[str, StillProcess] = {}
    try:
        for name in DAEMONS:
            daemons[name] = StillProcess(loopback, name, MEGABYTES)
        for name in DAEMONS:
            tools.wait_until(lambda name=name: loopback.show(name, "status")["phase"] == "gathering")
        yield loopback, daemons
    finally:
        for daemon in daemons.values():
            daemon.end()


def rows(loopback: LocalFederation, name: str, kind: str) -> list[dict[str, Any]]:
    journal = Journal(loopback.folder(name).generation(1) / "journal.db", read_only=True)
    try:
        return journal.records((kind,))
    finally:
        journal.close()


def source_of(loopback: LocalFederation, round: int) -> str:
    """Whose artifact the Node client's is in a round, by the daemons' own code."""
    key = read_round_key(loopback.folder(NODE).pki / "round.key")
    digest = loopback.federation.digest
    order = schedule.order(round_key=key, federation_digest=digest, round=round, sites=len(SITES), kind="derangement")
    return SITES[order[SITES.index(NODE)]]


def test_it_meets_every_known_answer() -> None:
    words = command("vectors.js", ROOT / "proto")
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = (
        "federation",
        "schedule",
        "visits",
        "manifest",
        "round",
        "parking",
        "state",
        "secure_sum",
        "sum_statements",
    )
    known = {name: json.loads((ROOT / "proto" / "vectors" / f"{name}.json").read_text()) for name in names}
    counts = {name: len(vectors) for name, vectors in known.items()}
    counts |= {name: 1 + len(known[name]["refused"]) for name in ("manifest", "round")}
    for name, kinds in (
        ("parking", ("frames", "refused")),
        ("secure_sum", ("members_min", "info", "artifacts", "sums")),
        ("sum_statements", ("accepted", "refused", "small_order")),
    ):
        counts[name] = sum(len(known[name][kind]) for kind in kinds)
    assert json.loads(done.stdout) == counts


def ended_transfers(loopback: LocalFederation, source: str, round: int) -> list[dict[str, Any]] | None:
    """The client's transfers of a round by the source's ledger, once their ends are in it."""
    sent = [row for row in loopback.show(source, "egress") if (row["peer"], row["round"]) == (NODE, round)]
    return sent if all(row["outcome"] != "open" for row in sent) else None


def test_it_takes_its_turn_and_is_refused_outside_it(
    federation: tuple[LocalFederation, dict[str, StillProcess]], tools: Any
) -> None:
    loopback, daemons = federation
    words = command("client.js", ROOT / "proto", loopback.folder(NODE).path, NODE, ROUNDS)
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        said = []
        for line in client.stdout:
            step = json.loads(line)
            said.append(step)
            if step["step"] == "waiting" and step["round"] == 2:  # only now is there a second round to wait for
                for daemon in daemons.values():
                    daemon.hear("ordered 1")
                    daemon.hear("ready")
                    daemon.release()
        assert client.wait() == 0, client.stderr.read()
    steps = {name: [step for step in said if step["step"] == name] for name in {step["step"] for step in said}}

    assert [step["site"] for step in steps["greeted"]] == list(DAEMONS)
    assert all("federation digest differs" in step["reason"] for step in steps["stranger"])
    assert [step["site"] for step in steps["misnamed"]] == [DAEMONS[0]]
    assert [step["ready"] for step in steps["waiting"]] == [True, False]
    for round, taken in enumerate(steps["taken"], start=1):
        source = source_of(loopback, round)
        (other,) = set(DAEMONS) - {source}
        assert (taken["round"], taken["site"], taken["generation"]) == (round, source, 1)
        assert taken["bytes"] > MEGABYTES << 20
        assert taken["chunks"] > MEGABYTES
        (published,) = (row for row in rows(loopback, source, "published") if row["round"] == round)
        assert published["body"]["artifact"]["sha256"] == taken["sha256"]
        sent = tools.wait_until(lambda source=source, round=round: ended_transfers(loopback, source, round))
        assert [row["sha256"] for row in sent] == [taken["sha256"]] * 2
        assert {"complete"} <= {row["outcome"] for row in sent} <= {"complete", "broken"}
        (denied,) = (step for step in steps["denied"] if step["round"] == round)
        assert denied["site"] == other
        assert denied["reason"] == f"round {round} does not give {other}'s model to {NODE}"
        reasons = [row["body"]["reason"] for row in rows(loopback, other, "denied")]
        assert denied["reason"] in reasons
        assert not [row for row in loopback.show(other, "egress") if (row["peer"], row["round"]) == (NODE, round)]


def test_it_follows_a_chain_of_amendments_and_leaves(
    chain: Chain, federation: tuple[LocalFederation, dict[str, StillProcess]], tools: Any
) -> None:
    loopback, _ = federation
    words = command("amended.js", ROOT / "proto", loopback.folder(NODE).path, NODE)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]

    verified = {"step": "verified", "number": 2, "digest": chain.head.digest, "members": list(AMENDED)}
    assert said[:2] == [{**verified, "site": name} for name in DAEMONS]
    other, other_bytes, taken, left = said[2:]
    (round_key,) = MembershipFolder(loopback.folder(DAEMONS[0]).membership).round_keys().values()
    source = _source(loopback.federation, round_key)
    assert other == {"step": "other epoch", "site": source, "unavailable": "UNAVAILABLE_EPOCH"}
    assert other_bytes["status"] == "ABORTED"
    (published,) = (row for row in rows(loopback, source, "published") if row["round"] == 1)
    assert (taken["site"], taken["sha256"]) == (source, published["body"]["artifact"]["sha256"])
    assert taken["head"] == 2
    folders = {what: MembershipFolder(loopback.folder(left[what]).membership) for what in ("false", "notice")}
    assert [notice.signature.hex() for notice in folders["notice"].notices()] == [left["signature"]]
    # The other daemon hands the true notice on; a daemon that had taken the false one would have kept that.
    (taken_notice,) = tools.wait_until(folders["false"].notices)
    assert taken_notice.signature.hex() == left["signature"]


TABLE = {
    "network.table": {"shape": [9], "values": [30, 29, 0, 0, 0, 13, 16, 0, 0]},
    "network.count": {"shape": [], "values": [31]},
}
"""What the Node client counted: of 30 people 31 samples, 29 with a class, 13 of one and 16 of the other."""


SECURE: dict[str, Any] = {"method": "statistics", "rounds": 1, "stages": "[aggregate]\nsecure = true"}


def ran(script: str, *arguments: object) -> list[dict[str, Any]]:
    """The steps of a script that has ended well."""
    words = command(script, *arguments)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_takes_part_in_a_secure_sum(found: Callable[..., LocalFederation], tools: Any) -> None:
    with found(sites=SITES, site="[egress]\ntraining_set_size = true", **SECURE) as loopback:
        tools.start(loopback, DAEMONS)
        folder = loopback.folder(NODE).path
        said = {step["step"]: step for step in ran("summing.js", ROOT / "proto", folder, NODE, json.dumps(TABLE))}
        tools.finish_well(loopback)
    total, digest = said["sum"]["sums"], said["sum"]["sha256"]
    assert said["sum"]["contributors"] == list(SITES) == list(said["committed"]["set"])
    added = {name: np.array(tensor["values"]) for name, tensor in TABLE.items()}
    for name in DAEMONS:
        (record,) = tools.records(loopback, name)
        assert (record["contributors"], record["aggregate_sha256"]) == (list(SITES), digest)
        compared = {row["body"]["site"]: row["body"]["agrees"] for row in rows(loopback, name, "compared")}
        assert compared[NODE], "the daemon finds that the digest of the sum is its own"
        round = loopback.folder(name).generation(1) / "checkpoints" / "round-000001"
        own, summed = (load_file(round / stage / "sums.safetensors") for stage in ("count", "aggregate"))
        assert {tensor: value.ravel().tolist() for tensor, value in summed.items()} == total
        added = {tensor: value + own[tensor].ravel() for tensor, value in added.items()}
        # What left for the Node client is masked, and what came from there is no other artifact than its masked one.
        sent = [each for each in tools.transfers(loopback, name) if each["peer"] == NODE]
        assert sorted((each["kind"], each.get("masked", False)) for each in sent) == [
            ("opening", False),
            ("sums", True),
        ]
        (trained,) = (row["body"]["artifact"]["sha256"] for row in rows(loopback, name, "trained"))
        assert trained not in {each["sha256"] for each in sent}
        arrived = [row["body"]["source"] for row in rows(loopback, name, "arrived")]
        assert {each["origin"]: each["artifact"]["sha256"] for each in arrived}[NODE] == said["masked"]["sha256"]
        shown = run_json("statistics", "--home", loopback.home, "--site", name)
        assert shown["members"] == list(SITES)
        assert shown["all"] == {"samples": total["network.count"][0], "people": total["network.table"][0]}
    assert {name: value.tolist() for name, value in added.items()} == total
    ledger = [json.loads(line) for line in (folder / "egress.jsonl").read_text().splitlines()]
    left = sorted((row["kind"], row["peer"]) for row in ledger if row["type"] == "intent")
    assert left == sorted((kind, name) for kind in ("opening", "sums") for name in DAEMONS)


def test_it_refuses_what_is_no_part_of_the_sum(tmp_path: Path) -> None:
    text = draft("babel", rounds=1, method="statistics", aggregate={"secure": True})
    loopback = LocalFederation.create(tmp_path, text, dict.fromkeys(SITES, SITE))
    folders = (word for name in (NODE, DAEMONS[0]) for word in (loopback.folder(name).path, name))
    said = ran("refusals.js", ROOT / "proto", *folders)
    refused = {step["what"] for step in said if step["step"] == "refused"}
    assert {"another seed of its own", "another seed of a pair", "a second commit", "a key of small order"} <= refused
    assert "to open without all commits" in refused
    denied = {step["what"]: step["status"] for step in said if step["step"] == "denied"}
    assert denied["a site that is no peer"] == "UNAUTHENTICATED"
    assert denied["a sum before greetings match"] == "FAILED_PRECONDITION"
    assert denied["metrics"] == "UNIMPLEMENTED"
    assert denied["another kind"] == denied["another round's sum"] == "PERMISSION_DENIED"
    assert denied["bytes that are no message"] == denied["another stage"] == "INVALID_ARGUMENT"
    assert (len(refused), len(denied)) == (13, 12)
