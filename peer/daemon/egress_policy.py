"""What this site's policy lets leave, compared with what the ledger says has left."""

from __future__ import annotations

import logging
from typing import Any

from peer.core import access, limits
from peer.core.artifacts import Artifact, Purpose
from peer.core.kinds import Kind
from peer.core.leak import contradicts, ledger_facts
from peer.core.machine import SiteMachine
from peer.core.privacy import Spending, auc_max, mu_of, spent_facts
from peer.core.roster import SiteName
from peer.daemon.chain_keeper import ChainKeeper
from peer.privacy_budget import PrivacyBudget
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.records.ledger import Ledger
from peer.site.sums.pair_keys import SEED_BYTES

log = logging.getLogger(__name__)

SPENT = "what this site's people may lose is spent"
DOUBTED = "an attack here contradicts the guarantee of its noise"
LEAKS = "its measured leak is not within the bound"  # for another site, without a figure


class EgressPolicy:
    """Decides by ``[egress]`` in the operator's site.toml; each reason is for the other site's operator.

    Args:
        federation: the federation.
        site: the site's private configuration.
        machine: the state machine; the policy only reads it.
        ledger: what has left; the policy only reads it.
        chain: the amendments; None: there are none.
    """

    def __init__(
        self,
        *,
        federation: FederationConfig,
        site: SiteConfig,
        machine: SiteMachine,
        ledger: Ledger,
        chain: ChainKeeper | None = None,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._federation = federation
        self._egress = site.egress
        self._machine = machine
        self._ledger = ledger
        self._chain = chain
        self._budget, self._member = budget, f"{federation.digest}/{machine.rules.site}"

    def kept_for(self, artifact: Artifact) -> str | None:
        """Return why an artifact stays here, for another site; ``None`` if it may leave.

        Of a masked artifact the leak does not matter: it tells nothing by itself.
        """
        if artifact.spent is not None and self._exceeds(artifact.spent):
            return SPENT
        if _contradicts_noise(artifact):
            return DOUBTED
        return LEAKS if artifact.commitments is None and self._egress.keeps(artifact) else None

    def _exceeds(self, spent: Spending) -> bool:
        """Return whether more was spent than may be, as far as is known by now."""
        if spent.exceeded or self._budget is None:
            return spent.exceeded
        try:
            return self._budget.exceeds(self._member, mu_of(spent.epsilon_max, spent.delta))
        except (OSError, ValueError):
            return True  # the worker says what is wrong with the account

    def denial(self, caller: SiteName, kind: Kind) -> str | None:
        """Return why nothing of that kind leaves for a caller; ``None`` if it may."""
        if kind in self._egress.permitted_kinds(self._machine.rules.plan) and self.permits_receiver(caller):
            return None
        return self.describe(caller, f"sends no {kind} to {caller}")

    def permits_receiver(self, peer: SiteName) -> bool:
        """Return whether the operator permits artifacts to leave for a site; ``*`` covers the sites of the genesis."""
        if peer in self._federation.roster or peer in self._egress.receivers:
            return self._egress.permits_receiver(peer)
        return self._egress.newcomers == "accept" or (self._chain is not None and peer in self._chain.accepted())

    def describe(self, peer: SiteName, says: str) -> str:
        """Build the reason of a refusal by this site's policy, with the operator's remedy for a newcomer."""
        is_new = peer not in self._federation.roster and peer not in self._egress.receivers
        accept = f" before its operator runs `mhfl-peer federation accept {peer}`"
        return (
            f"{self._machine.rules.site}'s policy {says}{accept if is_new and not self.permits_receiver(peer) else ''}"
        )

    def limit_reason(self, round: int, size: int) -> str | None:
        """Return why ``size`` more bytes would exceed the round's egress limit, or None."""
        limit = self._egress.bytes_per_round_max
        if limit is None or self._ledger.bytes_in_round(self._machine.memory.generation, round) + size <= limit:
            return None
        return f"{self._machine.rules.site}'s policy lets at most {limit} bytes leave in a round"

    def repeated(self, caller: SiteName, purpose: Purpose, round: int, artifact: Artifact, size: int) -> str | None:
        """Return why the caller may not receive ``size`` more bytes of an artifact, or None.

        The first copies for all receivers have priority over a second copy for any.
        """
        sent = self._ledger.sent_in_round(self._machine.memory.generation, round)
        of_artifact = sent.artifact(caller, purpose, artifact.sha256)
        if of_artifact.complete >= limits.COPIES_PER_ARTIFACT_MAX:
            return f"{caller} has had {of_artifact.complete} complete copies of this artifact"
        if of_artifact.transfers >= limits.TRANSFERS_PER_ARTIFACT_MAX:
            return f"{caller} has begun {of_artifact.transfers} transfers of this artifact"
        limit = self._egress.bytes_per_round_max
        if limit is None or sent.bytes_to[caller, purpose] + size <= artifact.bytes:
            return None
        missing = sum(
            max(0, copy_bytes - sent.bytes_to[peer, copy_purpose])
            for peer, copy_purpose, copy_bytes in access.first_copies(self._machine.rules, self._machine.memory, round)
            if peer != caller and self.permits_receiver(peer)
        )
        if sent.bytes + size + missing <= limit:
            return None
        return f"{caller} has had this artifact, and the round's other bytes are for sites that have not"

    def circumstances(self, round: int, *, relayed: bool = False, masked: bool = False) -> dict[str, Any]:
        """Return the extra ledger fields of an intent: membership epoch, relay route, and whether it is masked."""
        epoch = self._machine.rules.epoch(round).digest
        facts: dict[str, Any] = {} if epoch is None else {"epoch": epoch}
        return facts | ({"route": "relay"} if relayed else {}) | ({"masked": True} if masked else {})

    def warn(self, round: int, artifact: Artifact, *, evaluation: bool) -> None:
        """Warn of an artifact, or of an amount, that the policy refuses, before receivers are denied."""
        reason = self.kept_for(artifact)
        if reason == DOUBTED:
            log.error("the artifact stays here: an attack contradicts its noise", extra=_doubts(round, artifact))
        elif reason is not None:
            log.warning(f"{artifact.kind} stays here: {reason}", extra={"round": round, "owner": artifact.owner})
        rules, limit = self._machine.rules, self._egress.bytes_per_round_max
        everybody = evaluation or rules.pattern(round) == "all_to_all"
        visited = rules.visits if artifact.kind != "return" else 0
        receivers = len(rules.others) if everybody else max(1, visited)
        needed = (artifact.bytes + SEED_BYTES * len(artifact.commitments or ())) * receivers  # an opening has seeds
        if artifact.kind == "return":  # beside the own model's visits
            needed += self._ledger.bytes_in_round(self._machine.memory.generation, round)
        if limit is not None and needed > limit:
            facts = {"round": round, "bytes": needed, "bytes_per_round_max": limit}
            remedy = "raise [egress] bytes_per_round_max in site.toml, or choose a smaller model"
            log.warning("policy lets less leave than the method sends", extra={**facts, "remedy": remedy})


def _contradicts_noise(artifact: Artifact) -> bool:
    """Return whether an attack told more of the people than the noise lets any attack tell."""
    leak, spent = artifact.leak, artifact.spent
    if leak is None or spent is None:
        return False
    return contradicts(leak.auc, leak.members, leak.others, auc_max(spent.mu))


def _doubts(round: int, artifact: Artifact) -> dict[str, Any]:
    """Return what the log says of an artifact whose noise an attack contradicts."""
    figures = {**ledger_facts(artifact.leak), **spent_facts(artifact.spent)}
    remedy = "report a bug (`mhfl-peer bugreport`), unless this site's test people differ from those it trains on"
    return {"round": round, "owner": artifact.owner, **figures, "remedy": remedy}
