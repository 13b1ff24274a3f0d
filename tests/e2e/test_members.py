"""Members come and go between real daemons: one joins, two are killed, one is expelled; the workers train nothing."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import draft, site_text
from peer.config import toml
from peer.config.site_folder import make_private, write_atomically
from peer.core.messages import SignedAmendment
from peer.core.roster import RoundKey, SiteName
from peer.daemon.chain_keeper import ChainKeeper, keeper_at_rest
from peer.daemon.dispatch import now
from peer.daemon.startup import load
from peer.demo.local_federation import LocalFederation, free_ports
from peer.errors import DaemonDown
from peer.identity import certificates, enrolment
from peer.membership.amendment import Amendment, Newcomer
from peer.membership.folder import MembershipFolder
from peer.membership.round_keys import amendment_tag, seal_key
from peer.membership.signatures import endorse_as_founder
from peer.records.folder_documents import status_when_down
from peer.records.journal import Journal

pytestmark = pytest.mark.e2e
FAKES = Path(__file__).parents[1] / "fakes"
WORKER = [sys.executable, "-I", "-S", str(FAKES / "worker.py"), "paced", "64", "all_to_all", "model", "train"]
FOUNDERS = ("africa", "asia", "europe")
REMAINING = ("africa", "america", "europe")
AMERICA, ASIA = SiteName("america"), SiteName("asia")
ROUNDS, LEAD_ROUNDS = 60, 6
LIMIT_S = 100.0
PACE = {"beat_s": 0.5, "silence_s": 6, "linger_s": 30}
SITE = site_text(model={"name": "resnet10"}, egress={"newcomers": "accept"})
NEW_KEY = RoundKey(b"\x2a" * 32)


class ChangingFederation(LocalFederation):
    """A federation whose founder amends it at a site that was killed, and starts that site again."""

    program = (sys.executable, "-P", str(FAKES / "daemon.py"), json.dumps(WORKER))

    @property
    def authority(self) -> enrolment.Authority:
        return enrolment.Authority.load(self.home.parent / "ca", now=now())

    def until(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status of a site that satisfies a condition."""
        end_s, status = time.monotonic() + LIMIT_S, None
        while time.monotonic() < end_s:
            with contextlib.suppress(DaemonDown):
                status = self.show(name, "status")
                if holds(status):
                    return dict(status)
            time.sleep(0.2)
        raise AssertionError(f"{name} never was as it should: {status}; {self.console(name)[-3000:]}")

    def committed(self, name: str, round: int) -> None:
        self.until(name, lambda status: status["committed"] >= round)

    @contextlib.contextmanager
    def killed(self, name: str) -> Iterator[ChainKeeper]:
        """The chain of a site while its daemon is down, killed in the midst of a round."""
        self.kill(name)
        folder = self.folder(name)
        with folder.locked():
            yield keeper_at_rest(folder, load(folder)[2])
        self.start(name)

    def amendment(self, keeper: ChainKeeper, *, round_key: RoundKey, **changes: Any) -> SignedAmendment:
        """The next amendment of a site's chain, signed by the founder."""
        head = keeper.chain.head
        place = {"federation": head.federation, "number": head.number + 1, "previous": head.digest}
        tag = amendment_tag(round_key, head.federation)
        body = Amendment(**place, issued=int(time.time()), round_key_tag=tag, **changes).encode()
        return SignedAmendment(body, (endorse_as_founder(self.authority.key, body),))

    def admit(self, name: SiteName) -> Newcomer:
        """The folder of a site that is none of the genesis; it has no round key."""
        folder, (port,) = self.folder(name), free_ports(1)
        make_private(folder.pki)
        authority, key = self.authority, certificates.new_key()
        certificate = certificates.issue(
            authority.key, authority.certificate, name=name, public_key=key.public_key(), now=now()
        )
        for file, content in (
            (certificates.KEY_FILE, certificates.key_pem(key)),
            (certificates.CA_FILE, certificates.certificate_pem(authority.certificate)),
            (certificates.CERTIFICATE_FILE, certificates.certificate_pem(certificate)),
        ):
            write_atomically(folder.pki / file, content)
        write_atomically(folder.federation_toml, authority.federation_toml.encode())
        write_atomically(folder.site_toml, (toml.text({"listen": f"127.0.0.1:{port}"}) + SITE).encode())
        return Newcomer(name, certificates.key_digest(key.public_key()), f"127.0.0.1:{port}")

    def rows(self, name: str, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """The rows of a kind in a site's journal, each with its round."""
        with contextlib.closing(Journal(self.folder(name).generation(1) / "journal.db", read_only=True)) as journal:
            return [(round, dict(body)) for _, round, body in journal.rows((kind,))]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[ChangingFederation]:
    text = draft("trial", rounds=ROUNDS, method="fedavg", shared_model={"name": "resnet10"}, pace=PACE)
    with ChangingFederation.create(tmp_path, text, dict.fromkeys(FOUNDERS, SITE)) as changing:
        assert isinstance(changing, ChangingFederation)
        yield changing


def test_a_site_joins_two_are_killed_and_one_is_expelled(federation: ChangingFederation) -> None:
    for name in FOUNDERS:
        federation.start(name)
    federation.committed("asia", 2)

    with federation.killed("africa") as keeper:
        joins = federation.show("asia", "status")["round"] + LEAD_ROUNDS
        added = federation.admit(AMERICA)
        genesis_key = federation.authority.round_key
        keeper.enact(federation.amendment(keeper, round_key=genesis_key, from_round=joins, add=(added,)))
        assert keeper.head is not None
        MembershipFolder(federation.folder("america").membership).save_joined(keeper.head)
    federation.start("america")
    federation.committed("america", joins + 2)

    with federation.killed("europe") as keeper:
        leaves = federation.show("america", "status")["round"] + LEAD_ROUNDS
        own_key = load(federation.folder("europe"))[2].key.public_key()
        sealed = seal_key(NEW_KEY, own_key, federation=federation.federation.digest, site=SiteName("europe"))
        keeper.enact(federation.amendment(keeper, round_key=NEW_KEY, from_round=leaves, expel=ASIA), sealed=sealed)
        head = keeper.head

    for name in REMAINING:
        assert federation.daemons[SiteName(name)].wait(LIMIT_S) == 0, federation.console(name)[-3000:]
    refused = [row["reason"] for _, row in federation.rows("asia", "refused")]
    assert any("was expelled from this federation by amendment 2" in reason for reason in refused), refused
    assert federation.daemons[ASIA].wait(LIMIT_S) == 0
    assert "expelled from the federation by amendment 2" in status_when_down(federation.folder("asia"))["departed"]

    commits = {name: dict(federation.rows(name, "committed")) for name in REMAINING}
    for name in REMAINING:
        assert MembershipFolder(federation.folder(name).membership).chain(federation.federation).head.head == head
        sources = {round: {source["site"] for source in row["sources"]} for round, row in commits[name].items()}
        for round, used in sources.items():
            members = {*FOUNDERS} | ({AMERICA} if round >= joins else set()) - ({ASIA} if round >= leaves else set())
            assert used <= members - {name}, (name, round)
        assert sources[ROUNDS] == {*REMAINING} - {name}
    assert len({commits[name][ROUNDS]["aggregate_sha256"] for name in REMAINING}) == 1
    shadowed = joins - 1
    assert min(commits["america"]) == shadowed
    assert commits["america"][shadowed]["aggregate_sha256"] == commits["africa"][shadowed]["aggregate_sha256"]
    with_all = [round for round, row in commits["africa"].items() if set(row["contributors"]) == {*FOUNDERS, AMERICA}]
    assert with_all
    assert joins <= min(with_all) <= max(with_all) < leaves
