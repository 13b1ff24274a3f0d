"""Which people a training stage used: a file of keyed digests, which the journal names by its SHA-256.

``cohorts/`` in a generation's folder has the key, and a file for each set of people that a stage was trained with.
Without the key, nobody can tell from a file or from the journal whether a person is in the set.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peer.files import stamp, write_file

FOLDER = "cohorts"
KEY = "key"
KEY_BYTES = 32
LISTS = ("training", "test")
"""The lists of a datalist whose samples count; the trainer holds out validation samples of the first."""


def person_of(name: str, subject: str | None) -> str:
    """Return the subject of a sample; without one, the sample is a person of its own, named by its image."""
    return subject or f"/{name}"


def spellings(subject: str) -> tuple[str, str]:
    """Return the persons that an operator may mean: this subject, or the sample without a subject with this image."""
    return subject, f"/{subject}"


class Cohorts:
    """The sets of people that the stages of one generation used.

    Args:
        home: the generation's folder. Without a key in it, as in a simulation, nothing is recorded.
    """

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER

    def create(self) -> None:
        """Make the folder and the key where they are missing; ``OSError`` if they cannot be written."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.key is None:
            del self.key
            write_file(self.folder / KEY, secrets.token_bytes(KEY_BYTES), 0o600)

    @functools.cached_property
    def key(self) -> bytes | None:
        """The key of the digests; ``None`` if there is none."""
        try:
            return (self.folder / KEY).read_bytes()
        except FileNotFoundError:
            return None

    def pseudonym(self, person: str) -> str:
        """Return the keyed digest of a person."""
        return hmac.new(self.key or b"", person.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()[:32]

    def write(self, people: Mapping[str, Iterable[str]]) -> str | None:
        """Write the people of each split durably, and return the set's digest; ``None`` without a key."""
        if self.key is None:
            return None
        digests = {split: sorted({self.pseudonym(person) for person in members}) for split, members in people.items()}
        content = json.dumps(digests, sort_keys=True).encode()
        cohort = hashlib.sha256(content).hexdigest()
        if not self._path(cohort).exists():
            write_file(self._path(cohort), content, 0o600)
        return cohort

    def read(self, cohort: str | None) -> dict[str, frozenset[str]] | None:
        """Return the digests of the people of each split; ``None`` if they are not known here, or damaged."""
        if cohort is None or self.key is None:
            return None
        try:
            content = self._path(cohort).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(content).hexdigest() != cohort:
            return None
        return {split: frozenset(members) for split, members in json.loads(content).items()}

    def missing_from(self, datalist: Path, cohort: str | None) -> int | None:
        """Return how many people of a set the datalist does not have any more; ``None`` if that cannot be told."""
        return _missing(self.folder.parent, cohort, datalist, stamp(datalist))

    def _path(self, cohort: str) -> Path:
        return self.folder / f"{cohort}.json"


def listed_people(datalist: Path) -> frozenset[str] | None:
    """Return the people of a datalist, whose entries are not checked; ``None`` if it cannot be read."""
    try:
        document: Any = json.loads(datalist.read_bytes())
        entries = [entry for name in LISTS for entry in document.get(name, [])]
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None
    people = set()
    for entry in entries:
        sample = entry if isinstance(entry, Mapping) else {"image": entry}
        image, subject = sample.get("image"), sample.get("subject")
        image = image[0] if isinstance(image, list) and image else image
        people.add(person_of(str(image), None if subject is None else str(subject)))
    return frozenset(people)


@functools.lru_cache(maxsize=8)
def _missing(home: Path, cohort: str | None, datalist: Path, stamped: tuple[int, ...]) -> int | None:
    """Compare a set with a datalist as it was at this stamp: `status` asks every second."""
    cohorts = Cohorts(home)
    people, listed = cohorts.read(cohort), listed_people(datalist)
    if people is None or listed is None:
        return None
    return len(frozenset().union(*people.values()) - {cohorts.pseudonym(person) for person in listed})
