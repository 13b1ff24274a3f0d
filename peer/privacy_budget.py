"""What the people of this machine's sites have lost of their privacy, in all federations with noise together.

The file ``budget.json`` in ``.privacy`` beside the folders of all federations has an entry for each stage with noise:
its ``1 / sigma**2`` summed over its steps, written before the stage begins. No generation, restored backup or new
federation on this machine makes an entry undone: what counts for a person is the sum of all entries whose people
include this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from peer.core.json_codec import from_json, to_json
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
    """

    member: str
    people: str
    mu_squared: float
    released: bool = False


@dataclass(frozen=True)
class Account:
    """The file: entries by the digest of their work, and by digest the sets of people, as digests with the key."""

    key: str
    entries: dict[str, Entry] = field(default_factory=dict)
    people: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def people_of(self, entries: Iterable[Entry]) -> set[str]:
        """Return the people of these entries."""
        return {person for entry in entries for person in self.people[entry.people]}

    def lost(self, people: Iterable[str], counted: Iterable[Entry]) -> float:
        """Return the largest sum of these entries over the people of a set."""
        sums = dict.fromkeys(people, 0.0)
        for entry in counted:
            for person in self.people[entry.people]:
                if person in sums:
                    sums[person] += entry.mu_squared
        return max(sums.values(), default=0.0)


class PrivacyBudget:
    """The file of one machine; sites of several federations may use it at once.

    Args:
        folder: ``.privacy``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def charge(self, work: str, member: str, mu_squared: float, people: Iterable[str], *, mu_max: float) -> bool:
        """Record a stage durably before it begins; return whether its result may leave.

        Nothing of a member leaves while the sum exceeds ``mu_max``: a later result would also tell what an earlier
        stage has learnt, so that all of them count before the next one leaves.

        Raises:
            OSError: the file cannot be read or written.
            ValueError: it is damaged.
        """
        with self._locked():
            account = self._read()
            account.entries.setdefault(work, Entry(member, self._enter(account, people), mu_squared))
            own = {name: entry for name, entry in account.entries.items() if entry.member == member}
            everybody = account.people_of(own.values())
            counted = [entry for name, entry in account.entries.items() if entry.released or name in own]
            fits = account.lost(everybody, counted) <= mu_max**2 * (1 + SLACK)
            if fits:
                account.entries.update({name: replace(entry, released=True) for name, entry in own.items()})
            self._write(account)
        return fits

    def standing(self, member: str, people: Iterable[str]) -> tuple[float, bool]:
        """Return the mu of what has left about one person at most, and whether more of a member may.

        The people are these, and all whom a stage of the member has ever had.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged.
        """
        with self._locked():
            account = self._read()
        own = [entry for entry in account.entries.values() if entry.member == member]
        concerned = account.people_of(own) | {self._pseudonym(account, person) for person in people}
        released = [entry for entry in account.entries.values() if entry.released]
        return math.sqrt(account.lost(concerned, released)), all(entry.released for entry in own)

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
