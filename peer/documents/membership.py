"""The documents about members and amendments that commands print with ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict


class AmendmentHead(TypedDict):
    """The newest amendment of a chain; number 0 is federation.toml."""

    number: Annotated[int, "its number"]
    digest: Annotated[str, "SHA-256 of its body; of number 0, the federation's digest"]


class MemberShown(TypedDict):
    """A member after the newest amendment."""

    name: Annotated[str, "its name"]
    key: Annotated[str | None, "SHA-256 of its pinned key; null: any certificate of the CA counts"]
    address: Annotated[str | None, "as federation.toml or its `add` has it"]
    from_round: Annotated[int, "the first round that it takes part in"]
    leaving: Annotated[bool, "whether a notice of it waits for the amendment that takes it out"]
    accepted: Annotated[bool, "whether it may receive from this site: a newcomer once `federation accept` says so"]


class EpochShown(TypedDict):
    """An amendment of the chain, and what it changes."""

    number: Annotated[int, "its number"]
    digest: Annotated[str, "SHA-256 of its body"]
    from_round: Annotated[int, "the first round that it holds for"]
    issued: Annotated[int, "when it was made, in Unix seconds"]
    changes: Annotated[list[str], "what it changes, in words"]
    members: Annotated[list[str], "the members after it"]
    signed_by: Annotated[list[str], "whose signatures hold"]


class ApprovalShown(TypedDict):
    """An amendment that this site signed, and that is not in its chain yet."""

    number: Annotated[int, "its number"]
    digest: Annotated[str, "SHA-256 of its body"]


class NoticeShown(TypedDict):
    """A site's notice that it leaves."""

    site: Annotated[str, "the site"]
    issued: Annotated[int, "when it signed, in Unix seconds"]


class ForkShown(TypedDict):
    """A proof that two amendments of one number were signed."""

    number: Annotated[int, "the number of both"]
    own: Annotated[str, "digest of the one in this site's chain"]
    other: Annotated[str, "digest of the other"]
    signed_both: Annotated[list[str], "who signed both"]


class MembershipShown(TypedDict):
    """The chain of amendments as a site has it."""

    site: Annotated[str, "this site"]
    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    head: Annotated[AmendmentHead, "the newest amendment"]
    governance: Annotated[str, "who signs: `founder` or `members`"]
    signatures: Annotated[int, "how many signatures the next amendment needs, if it expels nobody"]
    rounds: Annotated[int, "the number of rounds"]
    hold: Annotated[bool, "whether an amendment holds the rounds"]
    members: Annotated[list[MemberShown], "the members after the newest amendment"]
    epochs: Annotated[list[EpochShown], "the amendments, oldest first"]
    approved: Annotated[list[ApprovalShown], "what this site signed and nobody enacted here"]
    notices: Annotated[list[NoticeShown], "of members that leave"]
    forks: Annotated[list[ForkShown], "what else was signed"]
    heads: Annotated[
        Mapping[str, AmendmentHead], "by peer that was heard since the daemon started, the head that it stated last"
    ]


class AmendmentEnacted(TypedDict):
    """An amendment that a site's chain has now; the other sites get it from there."""

    site: Annotated[str, "the site that enacted it"]
    number: Annotated[int, "its number"]
    digest: Annotated[str, "SHA-256 of its body"]
    from_round: Annotated[int, "the first round that it holds for"]
    changes: Annotated[list[str], "what it changes, in words"]
    members: Annotated[list[str], "the members after it"]
    signed_by: Annotated[list[str], "whose signatures hold"]
    notes: Annotated[list[str], "what else to know"]


class ProposalSigned(TypedDict):
    """A proposal that members sign in turn."""

    file: Annotated[str, "the file, for the next member"]
    number: Annotated[int, "the amendment's number"]
    digest: Annotated[str, "SHA-256 of its body"]
    from_round: Annotated[int, "the first round that it holds for"]
    enact_until_round: Annotated[
        int | None, "the last round in which a site can enact it; null for the end of a hold and new keys alone"
    ]
    enact_left_s: Annotated[
        float | None, "about how many seconds are left for that, by this site's recent rounds; null if not known"
    ]
    changes: Annotated[list[str], "what it changes, in words"]
    signed_by: Annotated[list[str], "whose signatures count; where a site leaves, its notice may be one"]
    needed: Annotated[int, "how many signatures it needs"]
    keys_for: Annotated[list[str], "the members with a copy of its new round key; empty where it brings none"]
    notes: Annotated[list[str], "what else to know"]


class LeaveNoticed(TypedDict):
    """The notice of a site that leaves."""

    site: Annotated[str, "the site that leaves"]
    issued: Annotated[int, "when it signed, in Unix seconds"]
    unreached: Annotated[list[str], "the members that had not answered the notice when the command ended"]
    notes: Annotated[list[str], "what else to know"]


class NewcomerAccepted(TypedDict):
    """A newcomer that this site's policy lets receive."""

    site: Annotated[str, "this site"]
    newcomer: Annotated[str, "who may receive"]
    accepted: Annotated[list[str], "all newcomers that may"]
    notes: Annotated[list[str], "what else to know"]


class ChainChosen(TypedDict):
    """The chain that the operator chose of two."""

    site: Annotated[str, "this site"]
    head: Annotated[AmendmentHead, "the newest amendment now"]
    notes: Annotated[list[str], "what else to know"]


DOCUMENTS: Mapping[str, Any] = {
    "leave": LeaveNoticed,
    "federation accept": NewcomerAccepted,
    "federation choose": ChainChosen,
    "federation propose": ProposalSigned,
    "federation approve": ProposalSigned,
    "federation enact": AmendmentEnacted,
    "federation show --site": MembershipShown,
    "federation amend": AmendmentEnacted,
    "federation hold": AmendmentEnacted,
    "federation resume": AmendmentEnacted,
}
