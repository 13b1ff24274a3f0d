"""What the people of this machine's sites have lost of their privacy, in all federations with noise together.

The file ``budget.json`` in ``.privacy`` beside the folders of all federations has an entry for each stage with noise:
its ``1 / sigma**2`` summed over its steps, written before the stage begins. No generation, restored backup or new
federation on this machine makes an entry undone: what counts for a person is the sum of all entries whose people
include this one.

An account may also be lost, or of another machine than a restored site's last rounds. What the site's ledger and its
signed manifests at peers know beside it is added.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from peer.core.json_codec import from_json, to_json
from peer.core.privacy import MU_MAX, NoisySteps
from peer.files import write_file

FOLDER = ".privacy"
FILE, LOCK = "budget.json", "lock"
KEY_BYTES = 32
DIGEST_CHARACTERS = 32
SLACK = 1e-9
"""The share by which rounding may take a sum above its bound."""


@dataclass(frozen=True)
class Entry:
    """One stage with noise.

    Attributes:
        member: the digest of the federation, and the site in it.
        people: the digest of the set of people.
        mu_squared: the sum of ``1 / sigma**2`` over the steps.
        released: whether its result may have left the site.
        steps: their number.
        generation: that in which it was charged first; 0 of what another record says was spent.
        colluders: where sites share the noise, against how many of them together it counts; ``None``: against all.
    """

    member: str
    people: str
    mu_squared: float
    released: bool = False
    steps: int = 1
    generation: int = 0
    colluders: int | None = None

    @property
    def sigma(self) -> float:
        return math.sqrt(self.steps / self.mu_squared)


@dataclass(frozen=True)
class Claim:
    """What a member had spent by its own signed manifest, which nobody has charged to people yet."""

    member: str
    generation: int
    mu: float


@dataclass(frozen=True)
class Balance:
    """What has left about one person at most.

    Attributes:
        mu: of all that has left, in all federations.
        is_within: whether more of the member may leave.
        steps: what ``mu`` is the sum of.
        federation_mu: what the member itself has spent, whoever was in its steps, so that it tells of nobody; at most
            ``MU_MAX``, which is more than any site may spend.
        colluders: against how many other sites together ``mu`` holds; ``None``: against all.
    """

    mu: float
    is_within: bool
    steps: tuple[NoisySteps, ...]
    federation_mu: float
    colluders: int | None = None


@dataclass(frozen=True)
class Account:
    """The file: entries by the digest of their work, and by digest the sets of people, as digests with the key."""

    key: str
    entries: dict[str, Entry] = field(default_factory=dict)
    people: dict[str, tuple[str, ...]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()

    def people_of(self, entries: Iterable[Entry]) -> set[str]:
        """Return the people of these entries."""
        return {person for entry in entries for person in self.people[entry.people]}

    def lost(self, people: Iterable[str], counted: Iterable[Entry]) -> float:
        """Return the largest sum of these entries over the people of a set."""
        return self.most_exposed(people, counted)[0]

    def most_exposed(self, people: Iterable[str], counted: Iterable[Entry]) -> tuple[float, list[Entry]]:
        """Return the largest sum of these entries over the people of a set, and the entries of such a person."""
        sums: dict[str, float] = dict.fromkeys(people, 0.0)
        counted = list(counted)
        for entry in counted:
            for person in self.people[entry.people]:
                if person in sums:
                    sums[person] += entry.mu_squared
        most = max(sorted(sums), key=sums.__getitem__, default=None)
        if most is None:
            return 0.0, []
        return sums[most], [entry for entry in counted if most in self.people[entry.people]]

    def spent_by(self, member: str, *, until: float = math.inf) -> float:
        """Return the sum of what has left of a member, in generations up to this one."""
        own = [entry for entry in self.entries.values() if entry.member == member and entry.released]
        return math.fsum(entry.mu_squared for entry in own if entry.generation <= until)


class PrivacyBudget:
    """The file of one machine; sites of several federations may use it at once.

    Args:
        folder: ``.privacy``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def charge(
        self,
        work: str,
        member: str,
        mu_squared: float,
        people: Iterable[str],
        *,
        mu_max: float,
        steps: int = 1,
        generation: int = 0,
        colluders: int | None = None,
    ) -> bool:
        """Record a stage durably before it begins; return whether its result may leave.

        Nothing of a member leaves while the sum exceeds ``mu_max``: a later result would also tell what an earlier
        stage has learnt, so that all of them count before the next one leaves.

        Raises:
            OSError: the file cannot be read or written.
            ValueError: it is damaged.
        """
        with self._locked():
            account, people = self._read(), tuple(people)
            account = self._settle_claims(account, member, people)
            entered = self._enter(account, people)
            entry = Entry(member, entered, mu_squared, steps=steps, generation=generation, colluders=colluders)
            account.entries.setdefault(work, entry)
            own = {name: entry for name, entry in account.entries.items() if entry.member == member}
            everybody = account.people_of(own.values())
            counted = [entry for name, entry in account.entries.items() if entry.released or name in own]
            fits = _is_within(account.lost(everybody, counted), mu_max)
            if fits:
                account.entries.update({name: replace(entry, released=True) for name, entry in own.items()})
            self._write(account)
        return fits

    def standing(self, member: str, people: Iterable[str], *, mu_max: float = math.inf) -> Balance:
        """Return what has left about one person at most.

        The people are these, and all whom a stage of the member has ever had.

        Raises:
            OSError: the file cannot be read or written.
            ValueError: it is damaged.
        """
        with self._locked():
            account, people = self._read(), tuple(people)
            if any(claim.member == member for claim in account.claims):
                account = self._settle_claims(account, member, people)
                self._write(account)
        own = [entry for entry in account.entries.values() if entry.member == member]
        concerned = account.people_of(own) | {self._pseudonym(account, person) for person in people}
        released = [entry for entry in account.entries.values() if entry.released]
        lost, entries = account.most_exposed(concerned, released)
        steps = Counter[float]()
        for entry in filter(lambda entry: entry.mu_squared, entries):
            steps[float(f"{entry.sigma:.12g}")] += entry.steps
        return Balance(
            mu=math.sqrt(lost),
            is_within=all(entry.released for entry in own) and _is_within(lost, mu_max),
            steps=tuple(NoisySteps(sigma, count) for sigma, count in sorted(steps.items())),
            federation_mu=min(MU_MAX, math.sqrt(account.spent_by(member))),
            colluders=min((each.colluders for each in entries if each.colluders is not None), default=None),
        )

    def exceeds(self, member: str, mu_max: float) -> bool:
        """Return whether more has left of a member's people than this mu, its claims included.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged.
        """
        if not (self._folder / FILE).exists():
            return False
        with self._locked():
            account = self._read()
        own = [entry for entry in account.entries.values() if entry.member == member]
        lost = account.lost(account.people_of(own), (entry for entry in account.entries.values() if entry.released))
        claims = [claim for claim in account.claims if claim.member == member]
        missing = (claim.mu**2 - account.spent_by(member, until=claim.generation) for claim in claims)
        return not _is_within(lost + max(0.0, *missing, 0.0), mu_max)

    def restore(self, member: str, mu: float, people: Iterable[str]) -> None:
        """Charge what the account lacks of the mu that a member's ledger has: the account may be of another machine.

        Raises:
            OSError: the file cannot be read or written.
            ValueError: it is damaged.
        """
        with self._locked():
            account = self._read()
            own = [entry for entry in account.entries.values() if entry.member == member]
            released = [entry for entry in account.entries.values() if entry.released]
            missing = mu**2 - account.lost(account.people_of(own), released)
            if missing > mu**2 * SLACK:
                digest = self._enter(account, people)
                name = f"ledger of {member}: {mu!r}"
                account.entries[name] = Entry(member, digest, missing, released=True)
                self._write(account)

    def claim(self, member: str, generation: int, mu: float) -> float:
        """Record durably what a member had spent by its own signed manifest, of this generation.

        The next stage or artifact of the member charges it to the people whom the site then has. What a later
        generation was charged comes on top: a restored site may have gone on before a peer showed it the manifest.

        Returns:
            The mu of which the account knew nothing; 0 if it knew all.

        Raises:
            OSError: the file cannot be read or written.
            ValueError: it is damaged.
        """
        with self._locked():
            account = self._read()
            claim = Claim(member, generation, mu)
            missing = mu**2 - account.spent_by(member, until=generation)
            if missing <= mu**2 * SLACK or claim in account.claims:
                return 0.0
            self._write(replace(account, claims=(*account.claims, claim)))
        return math.sqrt(missing)

    def _settle_claims(self, account: Account, member: str, people: Iterable[str]) -> Account:
        """Charge what a member's claims say beside its entries of the same generations and of earlier ones.

        The new entry has no generation: a manifest of any other one may have known of it.
        """
        own = [claim for claim in account.claims if claim.member == member]
        for claim in sorted(own, key=lambda claim: claim.generation):
            missing = claim.mu**2 - account.spent_by(member, until=claim.generation)
            if missing > claim.mu**2 * SLACK:
                name = f"manifest of {member}: generation {claim.generation}, {claim.mu!r}"
                digest = self._enter(account, people)
                account.entries[name] = Entry(member, digest, missing, released=True)
        return replace(account, claims=tuple(claim for claim in account.claims if claim.member != member))

    def _enter(self, account: Account, people: Iterable[str]) -> str:
        """Add a set of people to an account; return the set's digest."""
        members = tuple(sorted({self._pseudonym(account, person) for person in people}))
        digest = hashlib.sha256("\n".join(members).encode()).hexdigest()[:DIGEST_CHARACTERS]
        account.people[digest] = members
        return digest

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> Account:
        try:
            account: Account = from_json(Account, json.loads((self._folder / FILE).read_bytes()))
        except FileNotFoundError:
            return Account(secrets.token_hex(KEY_BYTES))
        if any(entry.people not in account.people for entry in account.entries.values()):
            raise ValueError("an entry names people that the file does not have")
        return account

    def _write(self, account: Account) -> None:
        write_file(self._folder / FILE, json.dumps(to_json(account), sort_keys=True).encode(), 0o600)

    @staticmethod
    def _pseudonym(account: Account, person: str) -> str:
        digest = hmac.new(bytes.fromhex(account.key), person.encode(errors="surrogateescape"), hashlib.sha256)
        return digest.hexdigest()[:DIGEST_CHARACTERS]


def _is_within(mu_squared: float, mu_max: float) -> bool:
    return mu_squared <= mu_max**2 * (1 + SLACK)
