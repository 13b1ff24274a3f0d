"""The chain files in a site's folder: amendments, proofs of forks, notices, approvals, keys.

Each file is replaced atomically, so that a crash leaves the former content or the new one. A file
that this version cannot read is refused, and never overwritten.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from peer.core import limits
from peer.core.messages import ChainHead, Endorsement, SignedAmendment, SignedNotice
from peer.core.roster import RoundKey, Sha256, SiteName, round_key, sha256, site_name
from peer.errors import DiskError, MembershipError, StateError
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import make_private, write_atomically
from peer.site.identity.certificates import read_file
from peer.site.membership.amendment import AmendmentRefused, body_digest, notice_from_base64, notice_to_base64
from peer.site.membership.chain import UPGRADE, Chain
from peer.site.membership.forks import Fork, prove

Value = TypeVar("Value")

VERSION = 1
CHAIN_FILE = "chain.json"
FORKS_FILE = "forks.json"
NOTICES_FILE = "notices.json"
APPROVALS_FILE = "approvals.json"
ACCEPTED_FILE = "accepted.json"
KEYS_FILE = "round_keys.json"
JOINED_FILE = "joined.json"
FILES = {
    CHAIN_FILE: "mhfl_chain",
    FORKS_FILE: "mhfl_forks",
    NOTICES_FILE: "mhfl_notices",
    APPROVALS_FILE: "mhfl_approvals",
    ACCEPTED_FILE: "mhfl_accepted",
    KEYS_FILE: "mhfl_round_keys",
    JOINED_FILE: "mhfl_joined",
}
"""The key that holds the version, by file."""


def decode_chain(content: bytes, federation: FederationConfig) -> Chain:
    """Decode a chain file. Raise ``AmendmentRefused`` if it holds no chain of this federation."""
    try:
        document = json.loads(content)
        if document[FILES[CHAIN_FILE]] != VERSION:
            raise AmendmentRefused("the file of the chain has another version", UPGRADE)
        return Chain.of(federation, map(amendment_from_json, document["amendments"]))
    except AmendmentRefused:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        raise AmendmentRefused(
            "the file holds no chain of amendments", "have a member write one: `mhfl-peer federation show --out FILE`"
        ) from None


@dataclass(frozen=True, slots=True)
class MembershipFolder:
    """The folder ``membership`` in a site's folder. Round keys are secrets: the files have mode 0600."""

    path: Path

    def chain(self, federation: FederationConfig) -> Chain:
        """Read and verify the chain. Raise ``StateError`` if it is not valid."""
        try:
            amendments = [amendment_from_json(entry) for entry in self._read(CHAIN_FILE, "amendments", [])]
            return Chain.of(federation, amendments)
        except (AmendmentRefused, ValueError) as error:
            raise self._broken(CHAIN_FILE, error) from error

    def save_chain(self, chain: Chain) -> None:
        """Write the chain durably, before the site acts on it."""
        self._write(CHAIN_FILE, {"amendments": [amendment_to_json(link.signed) for link in chain.links]})

    def chain_file(self) -> bytes:
        """Return the chain file's bytes, for a non-member. Raise ``StateError`` if there is none."""
        path = self.path / CHAIN_FILE
        if not path.exists():
            raise StateError("this site has no amendment", "nothing needs to be handed on: federation.toml says all")
        return read_file(path)

    def forks(self, chain: Chain) -> tuple[Fork, ...]:
        """Read the proofs of bodies that were signed beside this chain's own of the same number."""
        forks = []
        for entry in self._read(FORKS_FILE, "forks", []):
            try:
                forks.append(prove(chain, entry["number"], amendment_from_json(entry["other"])))
            except AmendmentRefused:  # the operator chose a chain that does not fork at that body
                continue
            except (ValueError, KeyError, TypeError) as error:
                raise self._broken(FORKS_FILE, error) from error
        return tuple(forks)

    def save_fork(self, fork: Fork, *, kept: SignedAmendment) -> bool:
        """Store the fork's body that is not ``kept`` in the chain; return False if it is known or the file is full.

        At most ``FORKS_KEPT_MAX`` proofs are kept: one accuses enough.
        """
        entries: list[dict[str, Any]] = self._read(FORKS_FILE, "forks", [])
        other = fork.own if kept.body == fork.other.body else fork.other
        entry: dict[str, Any] = {"number": fork.number, "other": amendment_to_json(other)}
        if any((each["number"], each["other"]["body"]) == (fork.number, entry["other"]["body"]) for each in entries):
            return False
        if len(entries) >= limits.FORKS_KEPT_MAX:
            return False
        self._write(FORKS_FILE, {"forks": [*entries, entry]})
        return True

    def notices(self) -> tuple[SignedNotice, ...]:
        """Return the notices of sites that leave, as they were received."""
        try:
            return tuple(map(notice_from_base64, self._read(NOTICES_FILE, "notices", [])))
        except ValueError as error:
            raise self._broken(NOTICES_FILE, error) from error

    def save_notices(self, notices: Iterable[SignedNotice]) -> None:
        self._write(NOTICES_FILE, {"notices": [notice_to_base64(notice) for notice in notices]})

    def approvals(self) -> dict[int, Sha256]:
        """Return the digest that this site approved of each number."""
        try:
            table = self._read(APPROVALS_FILE, "approvals", {})
            return {int(number): sha256(digest) for number, digest in table.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise self._broken(APPROVALS_FILE, error) from error

    def approve(self, number: int, body: bytes, *, instead: bool = False, signer: str = "this site") -> None:
        """Record durably, before the signature exists, that this site or the founder approves a body.

        Raise ``MembershipError`` if it approved another body of that number, unless ``instead`` is set: a
        signer of two bodies of one number is named to all.
        """
        digest, approved = body_digest(body), self.approvals()
        if approved.get(number, digest) != digest and not instead:
            raise MembershipError(
                f"{signer} has approved another amendment {number}, {approved[number][:12]}…",
                "make sure that nobody enacts that one, and repeat with --instead",
            )
        self.save_approvals(approved | {number: digest})

    def save_approvals(self, approved: Mapping[int, Sha256]) -> None:
        self._write(APPROVALS_FILE, {"approvals": {str(each): approved[each] for each in sorted(approved)}})

    def accepted(self) -> frozenset[SiteName]:
        """Return the newcomers that the operator accepted as receivers."""
        try:
            return frozenset(map(site_name, self._read(ACCEPTED_FILE, "sites", [])))
        except (ValueError, TypeError) as error:
            raise self._broken(ACCEPTED_FILE, error) from error

    def accept(self, site: SiteName) -> None:
        self._save_accepted(self.accepted() | {site})

    def _save_accepted(self, sites: Iterable[SiteName]) -> None:
        self._write(ACCEPTED_FILE, {"sites": sorted(sites)})

    def joined(self) -> ChainHead | None:
        """Return the amendment that added this site, as its bundle pinned it; ``None`` at a site of the genesis."""
        try:
            parts = self._read(JOINED_FILE, "amendment", {})
            return ChainHead(int(parts["number"]), sha256(parts["digest"])) if parts else None
        except (ValueError, TypeError, KeyError) as error:
            raise self._broken(JOINED_FILE, error) from error

    def save_joined(self, added: ChainHead) -> None:
        """Record the amendment that adds this site, before its daemon starts for the first time."""
        self._write(JOINED_FILE, {"amendment": {"number": added.number, "digest": added.digest}})

    def newcomers(self, federation: FederationConfig, own: SiteName) -> frozenset[SiteName]:
        """Return the sites that amendments added, including former ones; ``own`` too if its bundle says so."""
        added: set[SiteName] = set()
        if federation.ca_certificate is not None:
            added.update(map(SiteName, self.chain(federation).head.used_names))
        if self.joined() is not None:
            added.add(own)
        return frozenset(added.difference(federation.roster))

    def round_keys(self) -> dict[Sha256, RoundKey]:
        """Return the site's round keys of epochs, by their tags."""
        try:
            table = self._read(KEYS_FILE, "keys", {})
            return {sha256(tag): round_key(bytes.fromhex(key)) for tag, key in table.items()}
        except (ValueError, TypeError, AttributeError):  # without the cause, which could quote the secret
            raise self._broken(KEYS_FILE, ValueError("it holds no round keys")) from None

    def save_round_keys(self, keys: Mapping[Sha256, RoundKey]) -> None:
        self._save_keyring(self.round_keys() | dict(keys))

    def _save_keyring(self, keys: Mapping[Sha256, RoundKey]) -> None:
        self._write(KEYS_FILE, {"keys": {tag: keys[tag].hex() for tag in sorted(keys)}})

    def take_over(self, former: MembershipFolder, federation: FederationConfig) -> tuple[str, ...]:
        """Merge the replaced folder into this one of a backup; return the replaced folder's broken files.

        The longer chain wins; of two digests approved of one number, the replaced folder's.
        """

        def chain() -> None:
            newer, own = former.chain(federation), _readable(lambda: self.chain(federation))
            if own is None or len(newer.links) >= len(own.links):
                self.save_chain(newer)

        def forks() -> None:
            for fork in former.forks(chosen := self.chain(federation)):
                self.save_fork(fork, kept=chosen.links[fork.number - 1].signed)

        def notices() -> None:
            known = former.notices()
            self.save_notices(dict.fromkeys((*known, *(_readable(self.notices) or ()))))

        def approvals() -> None:
            newer = former.approvals()
            self.save_approvals((_readable(self.approvals) or {}) | newer)

        def accepted() -> None:
            newer = former.accepted()
            self._save_accepted(newer | (_readable(self.accepted) or newer))

        def keys() -> None:
            newer = former.round_keys()
            self._save_keyring((_readable(self.round_keys) or {}) | newer)

        def joined() -> None:
            if (added := former.joined()) is not None:
                self.save_joined(added)

        taken = {
            CHAIN_FILE: chain,
            FORKS_FILE: forks,
            NOTICES_FILE: notices,
            APPROVALS_FILE: approvals,
            ACCEPTED_FILE: accepted,
            KEYS_FILE: keys,
            JOINED_FILE: joined,
        }
        broken = []
        for name in (name for name in taken if (former.path / name).exists()):
            try:
                taken[name]()
            except StateError:
                broken.append(name)
        return tuple(broken)

    def _read(self, name: str, key: str, default: Any) -> Any:
        """Read the value of a file's key; return the default without a file."""
        path = self.path / name
        if not path.exists():
            return default
        try:
            document = json.loads(read_file(path, secret=True))
        except (ValueError, RecursionError):
            raise self._broken(name, ValueError("it is no JSON text")) from None
        version = document.get(FILES[name]) if isinstance(document, dict) else None
        if version != VERSION or key not in document:
            raise StateError(f"{path} has another form than version {VERSION} of this file", UPGRADE)
        if not isinstance(document[key], type(default)):
            raise self._broken(name, ValueError(f"{key} has another type"))
        return document[key]

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        make_private(self.path)
        content = json.dumps({FILES[name]: VERSION, **document}, indent=1, ensure_ascii=False)
        try:
            write_atomically(self.path / name, content.encode("utf-8") + b"\n")
        except UnicodeEncodeError as error:
            raise DiskError(f"{self.path / name} cannot be written: {error}") from error

    def _broken(self, name: str, error: Exception) -> StateError:
        return StateError(f"{self.path / name} cannot be used: {error}", "restore this site's backup")


def _readable(read: Callable[[], Value]) -> Value | None:
    """Read a file; return ``None`` if it is broken."""
    try:
        return read()
    except StateError:
        return None


def amendment_to_json(signed: SignedAmendment) -> dict[str, Any]:
    """Encode an amendment as files hold it: the body is the signed text."""
    by = [
        {"certificate_der": _base64(each.certificate_der), "signature": _base64(each.signature)} for each in signed.by
    ]
    return {"body": signed.body.decode("utf-8"), "by": by}


def amendment_from_json(entry: Any) -> SignedAmendment:
    """Decode the amendment in a file's entry. Raise ``ValueError`` if it has another form."""
    try:
        by = tuple(
            Endorsement(
                base64.b64decode(each["certificate_der"], validate=True),
                base64.b64decode(each["signature"], validate=True),
            )
            for each in entry["by"]
        )
        return SignedAmendment(entry["body"].encode("utf-8"), by)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError("an amendment has a body and signatures in base64") from None


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
