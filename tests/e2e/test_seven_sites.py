"""The story of seven sites: two join, one leaves, one is expelled and tries every call; one is late, one has a forked
chain, one comes back from an old backup. Real daemons and the real commands; the workers train nothing.

The page ``deploy/seven-sites.md`` shows what the commands print: ``pytest tests/e2e/test_seven_sites.py
--rewrite-scenarios`` writes it.
"""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from adversary.attacks import METHODS

from fakes.amended_daemons import LIMIT_S, AmendedDaemons
from fakes.drafts import draft, site_text
from fakes.transcript import Transcript
from peer.core.artifacts import EvaluationResult
from peer.core.limits import PROTOCOL_VERSION
from peer.core.messages import Heartbeat, Hello
from peer.core.roster import Sha256, SiteName
from peer.lab.demo.local_federation import free_ports
from peer.net.transport.client import ExchangeClient, NotAdmitted, Offer
from peer.net.transport.sum_statements import SumRequest
from peer.net.transport.wire import ArtifactRequest
from peer.site.config import toml
from peer.site.config.site_folder import SiteFolder
from peer.site.identity.certificates import KEY_FILE, key_digest, read_key
from peer.site.membership.amendment import decode
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.signatures import FOUNDER
from peer.site.records.journal import Journal
from peer.view.preflight.peers import site_pki

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(600)]

FOUNDERS = ("africa", "america", "asia", "europe", "oceania")
REMAINING = ("africa", "america", "asia", "europe", "oslo")
ROUNDS = 900
"""The last amendment ends the federation much earlier."""
LEAD_ROUNDS = 12
"""Rounds until the first one of an amendment that members sign: their signatures take some."""
PACE = {"beat_s": 0.5, "silence_s": 6, "linger_s": 60, "lead_rounds_max": 4, "lag_rounds_max": 5}
SITE = site_text(model={"name": "resnet10"}, egress={"newcomers": "accept"})
PAGE = Path(__file__).parents[2] / "deploy" / "seven-sites.md"
TITLE = """# A story of seven sites

What the commands printed in one run of `tests/e2e/test_seven_sites.py`: real daemons on one
machine, whose workers train nothing. Digests and lists are cut. [members.md](members.md) explains
the commands. The test compares its commands with this page, and `--rewrite-scenarios` writes it.
"""


class StoryDaemons(AmendedDaemons):
    """Daemons whose operators' commands are written down, as the operators see them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.transcript = Transcript(self.home, TITLE)

    def say(self, title: str, text: str) -> None:
        self.transcript.say(title, text)

    def type(self, *words: object, shown: int | None = None) -> str:
        return self.transcript.type(*words, shown=shown)

    def sign(self, command: str, site: str, *words: object, shown: int | None = None) -> str:
        consent = ("--yes",) if command in ("amend", "hold", "resume") else ()
        return self.type("federation", command, *words, *consent, "--site", site, shown=shown)

    def head(self, site: str) -> dict[str, Any]:
        """The newest amendment that a site has."""
        return dict(self.show(site, "membership")["epochs"][-1])

    def admit(self, name: str) -> None:
        """The founder adds a newcomer at europe, and the newcomer's daemon starts."""
        (port,) = free_ports(1)
        folder = self.home.parent
        csr, bundle = folder / f"{name}.csr", folder / f"{name}.bundle"
        place = ("--federation", self.ca / "federation.toml", "--site", name, "--out", csr)
        fingerprint = re.search(r"[0-9a-f]{2}(:[0-9a-f]{2}){31}", self.type("site", "init", "--newcomer", *place))
        assert fingerprint
        self.sign("amend", "europe", "--ca", self.ca, "--add", f"{name}=127.0.0.1:{port}", "--request", csr)
        self.sign("admit", "europe", "--ca", self.ca, csr, "--out", bundle, "--fingerprint", fingerprint[0])
        self.type("site", "join", bundle)
        newcomer = SiteFolder(self.home, self.federation.name, SiteName(name))
        newcomer.site_toml.write_text(toml.text({"listen": f"127.0.0.1:{port}"}) + SITE)
        self.start(name)

    def rows(self, name: str, *kinds: str) -> list[tuple[str, int, dict[str, Any]]]:
        """The rows of these kinds in the journal of a site's newest generation."""
        folder = self.folder(name)
        path = folder.generation(max(folder.generations())) / "journal.db"
        with contextlib.closing(Journal(path, read_only=True)) as journal:
            return [(kind, round, dict(body)) for kind, round, body in journal.rows(kinds)]


class Visitor:
    """Calls a peer with a site's key and certificate, as a program of its own would.

    While its site is a member, ``get_offer`` gets an offer. ``try_all`` then makes every call.
    """

    def __init__(self, federation: StoryDaemons, name: str) -> None:
        self.federation, self.name = federation, SiteName(name)
        chain = MembershipFolder(federation.folder(name).membership).chain(federation.federation)
        self.pki = site_pki(federation.folder(name), federation.federation, chain.head)
        self.chain, self.offer = chain, None

    def get_offer(self, peer: str) -> Offer:
        async def ask(client: ExchangeClient) -> Offer | None:
            round = self.federation.show(peer, "status")["round"]
            epoch = self.chain.at(round).digest if self.chain.at(round).number else None
            wanted = ArtifactRequest("model", round, "train", SiteName(peer), earlier=True, epoch=epoch)
            answer = await client.get_manifest(SiteName(peer), wanted, wait_s=1.0)
            return answer if isinstance(answer, Offer) else None

        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            if offer := asyncio.run(self._with_client(ask)):
                return offer
        raise AssertionError(f"{peer} offered nothing to {self.name}")

    def answers(self, peer: str, offer: Offer, folder: Path) -> dict[str, str]:
        """For each call, the reason with which the peer refuses it, or what it gives."""
        site, digest = SiteName(peer), self.federation.federation.digest

        async def call_all(client: ExchangeClient) -> dict[str, str]:
            report = EvaluationResult(1, offer.request.for_round, offer.manifest.artifact.sha256)
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "Hello": lambda: client.hello(site, Hello(PROTOCOL_VERSION, digest, Sha256("0" * 64), 1, 0.0)),
                "Beat": lambda: client.beat(site, Heartbeat(1, 1, "train")),
                "GetManifest": lambda: client.get_manifest(site, offer.request, wait_s=0.0),
                "FetchArtifact": lambda: client.fetch(offer, folder),
                "PutMetrics": lambda: client.put_report(site, report),
                "CompareManifests": lambda: client.compare_manifests(site, [offer.signed]),
                "GetSum": lambda: client.get_sum(site, SumRequest(1, "train"), wait_s=0.0),
            }
            reasons = {}
            for name, call in calls.items():
                with pytest.raises(NotAdmitted) as caught:
                    await call()
                reasons[name] = caught.value.reason
            reply = await client.get_amendments(site, after=0)
            assert (reply.keys, reply.notices) == ((), ())
            expulsion = decode(reply.amendments[-1].body)
            assert expulsion.expel == self.name
            reasons["GetAmendments"] = f"amendments 1 to {expulsion.number}, no key and no notice"
            assert {*reasons} == {*METHODS}, "the story tries every call"
            return reasons

        return asyncio.run(self._with_client(call_all))

    async def _with_client(self, act: Callable[[ExchangeClient], Awaitable[Any]]) -> Any:
        addresses = self.chain.head.addresses
        client = ExchangeClient(pki=self.pki, federation=self.federation.federation.digest, address=addresses.get)
        try:
            return await act(client)
        finally:
            await client.close()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[StoryDaemons]:
    text = draft("trial", rounds=ROUNDS, method="fedavg", shared_model={"name": "resnet10"}, pace=PACE)
    with StoryDaemons.create(tmp_path, text, dict.fromkeys(FOUNDERS, SITE)) as daemons:
        assert isinstance(daemons, StoryDaemons)
        yield daemons


def test_the_story_of_seven_sites(story: StoryDaemons, tmp_path: Path, rewrite: bool) -> None:
    for name in FOUNDERS:
        story.start(name)
    for name in FOUNDERS:
        story.until(name, lambda status: status["committed"] >= 1)

    joins = join_two(story)
    visitor = Visitor(story, "lima")
    offer = visitor.get_offer("europe")

    story.say("Three go away", "America makes a backup, and its disk is lost. Africa and asia are killed.")
    backup = tmp_path / "america.tar"
    story.type("backup", backup, "--with-key", "--site", "america")
    for name in ("america", "africa", "asia"):
        story.kill(name)
    shutil.move(story.folder("america").path, tmp_path / "lost")

    leave_and_fork(story)
    take_over(story, tmp_path)
    come_back(story)
    expelled_by = expel_lima(story, tmp_path)
    sent = {name: transfers_to(story, name, "lima") for name in expelled_by}
    answers = {peer: visitor.answers(peer, offer, tmp_path) for peer in expelled_by}
    assert all(each == answers["europe"] for each in answers.values()), answers
    story.say("It tries every call", "The four sites answer every call with lima's key so:")
    calls = "\n".join(f"{call:18}{answer}" for call, answer in answers["europe"].items())
    story.transcript.append(f"\n```text\n{calls}\n```\n\nLima's daemon has asked them, too, and ends.\n")
    story.end("lima")
    story.type("status", "--site", "lima")

    story.say("One comes back from a backup", "Its chain ends with amendment 2. It gets the rest, and the new key.")
    story.type("restore", backup, "--site", "america")
    story.start("america")
    story.follow(5, "america")

    last = end_together(story, tmp_path)
    story.transcript.check(PAGE, rewrite=rewrite)
    check_rounds(story, joins, last)
    check_expelled(story, sent)
    for name in (*REMAINING, "oceania", "lima"):
        story.call("egress", "verify", "--site", name)


def join_two(story: StoryDaemons) -> dict[str, int]:
    """The founder admits oslo and lima; the first round of each."""
    story.say("Two join", "Africa, america, asia, europe and oceania train. The founder adds oslo, and then lima.")
    story.admit("oslo")
    story.admit("lima")
    joins = {name: number for number, name in enumerate(("oslo", "lima"), 1)}
    for name, number in joins.items():
        story.follow(2, name)
        joins[name] = story.show(name, "membership")["epochs"][number - 1]["from_round"]
        story.until(name, lambda status, first=joins[name]: status["committed"] >= first)
    story.follow(2, *FOUNDERS)
    return joins


def leave_and_fork(story: StoryDaemons) -> None:
    """Oceania leaves; the founder signs another amendment 3 at asia."""
    story.say("One leaves", "Its daemon tells the others, and ends. The founder takes it out.")
    story.type("leave", "--yes", "--site", "oceania")
    story.until("europe", lambda shown: bool(shown["notices"]), "membership")
    story.end("oceania")
    story.sign("amend", "europe", "--ca", story.ca, "--leave")
    story.say("A forked chain", "Asia's daemon is down. There the founder insists on another amendment 3.")
    asia_from = story.head("europe")["from_round"]
    changes = ("--set", "pace.wait_max_s=600", "--from-round", asia_from, "--instead")
    story.sign("amend", "asia", "--ca", story.ca, *changes)


def take_over(story: StoryDaemons, tmp_path: Path) -> None:
    """The founder hands the signatures over to the members."""
    story.say(
        "The members take over",
        "The founder's last amendment pins all keys. A majority of the members signs from now on, and never\n"
        "less than three.",
    )
    keys = [
        f"--rekey={name}={key_digest(read_key(story.folder(name).pki / KEY_FILE).public_key())}"
        for name in ("africa", "asia", "europe")
    ]
    lost_key = key_digest(read_key(tmp_path / "lost" / "pki" / KEY_FILE).public_key())
    story.sign("amend", "europe", "--ca", story.ca, "--governance", "3", *keys, f"--rekey=america={lost_key}")
    story.follow(4, "oslo", "lima")


def come_back(story: StoryDaemons) -> None:
    """Africa is late, and asia on the fork."""
    story.say(
        "Two come back",
        "Africa has missed two amendments. Asia takes the longer chain, and keeps the proof that the\n"
        "founder signed two bodies of one number.",
    )
    for name in ("africa", "asia"):
        story.start(name)
    story.follow(4, "africa", "asia")
    (fork,) = story.show("asia", "membership")["forks"]
    assert (fork["number"], fork["signed_both"]) == (3, [FOUNDER])
    story.sign("show", "asia", shown=6)


def expel_lima(story: StoryDaemons, tmp_path: Path) -> tuple[str, ...]:
    """The members expel lima; the sites that know."""
    story.say("One is expelled", "Four of the five others sign; america is still away.")
    proposal = tmp_path / "expel-lima.json"
    for name in ("africa", "asia", "oslo"):
        story.until("europe", lambda status, peer=name: status["peers"][peer]["state"] == "heard")
    first = ("--from-round", reached_round(story) + LEAD_ROUNDS)
    story.sign("propose", "europe", "--expel", "lima", *first, "--out", proposal)
    for name in ("africa", "asia", "oslo"):
        story.sign("approve", name, "--yes", proposal)
    story.sign("enact", "oslo", proposal)
    expelled_by = ("africa", "asia", "europe", "oslo")
    story.follow(5, *expelled_by)
    return expelled_by


def reached_round(story: StoryDaemons) -> int:
    """The highest round that europe hears a member to be in."""
    status = story.show("europe", "status")
    return max(status["round"], *(peer["round"] or 0 for peer in status["peers"].values()))


def end_together(story: StoryDaemons, tmp_path: Path) -> int:
    """The members agree on the last round; its number."""
    story.say("The end", "The members agree on the last round, and every daemon ends with it.")
    # No earlier than the expulsion's first round, for which lima alone may have been the furthest.
    first = max(reached_round(story) + LEAD_ROUNDS, story.head("europe")["from_round"])
    last, proposal = first + 2, tmp_path / "end.json"
    story.sign("propose", "europe", "--rounds", last, "--from-round", first, "--out", proposal)
    for name in ("america", "asia"):
        story.sign("approve", name, "--yes", proposal)
    story.sign("enact", "asia", proposal)
    story.end(*REMAINING)
    story.sign("show", "america", shown=5)
    return last


def transfers_to(story: StoryDaemons, name: str, receiver: str) -> int:
    """How many transfers to a receiver a site's ledger has."""
    return len(story.call("egress", "--site", name, "--peer", receiver))


def check_rounds(story: StoryDaemons, joins: dict[str, int], last: int) -> None:
    """Every member has committed each round of its membership, but what it left out when it had been away; and all
    agree about the epoch of every round."""
    epochs: dict[int, dict[str, Any]] = {}
    for name in REMAINING:
        committed = {round for _, round, _ in story.rows(name, "committed")}
        left_out = {round for _, _, body in story.rows(name, "committed") for round in body["skipped"]}
        assert committed | left_out >= set(range(joins.get(name, 1), last + 1)), name
        assert max(committed) == last, name
        assert not left_out or name != "europe", left_out
        for kind, round, body in story.rows(name, "opened", "amended"):
            if kind == "opened" or body["reopened"]:  # the exchange began again, before anything was chosen
                epochs.setdefault(round, {})[name] = body.get("epoch")
    assert {round: of_sites for round, of_sites in epochs.items() if len({*of_sites.values()}) > 1} == {}
    heads = {MembershipFolder(story.folder(name).membership).chain(story.federation).head.digest for name in REMAINING}
    assert len(heads) == 1
    assert len({rows[-1][2]["aggregate_sha256"] for rows in (story.rows(n, "committed") for n in REMAINING)}) == 1


def check_expelled(story: StoryDaemons, sent: dict[str, int]) -> None:
    """Once a site knew of the expulsion, it neither chose nor took anything of lima, and sent it nothing."""
    for name in REMAINING:
        rows = story.rows(name, "amended", "arrived", "chosen")
        known = next(i for i, (kind, _, body) in enumerate(rows) if kind == "amended" and "lima" in body["gone"])
        for kind, round, body in rows[known + 1 :]:
            if kind != "amended":
                sources = [body["source"]] if kind == "arrived" else body["sources"]
                assert all(source["origin"] != "lima" for source in sources), (name, kind, round)
    assert sum(sent.values()) > 0
    for name, count in sent.items():
        assert transfers_to(story, name, "lima") == count, name
