"""What may leave a site: the part of site.toml that a data protection officer reads."""

from __future__ import annotations

from typing import Annotated

from peer.core import limits
from peer.core.plan import Kind, Plan
from peer.toml import Count, Loose, Table


class Egress(Table):
    """``[egress]`` of site.toml: what may leave the site, in artifacts and in what is told beside them.

    ``evaluate`` lets the site's model be measured at other sites and theirs here; of a test split with fewer than
    ``evaluation_samples_min`` samples no figure is told. ``reexport`` lets the others put what they receive from this
    site into the models that they export.
    """

    kinds: Annotated[tuple[Kind, ...], Loose] | None = None
    receivers: Annotated[tuple[str, ...], Loose] = ("*",)
    bytes_per_round_max: Count | None = None
    evaluate: bool = False
    evaluation_samples_min: Count = limits.EVALUATION_SAMPLES_MIN
    training_set_size: bool = False
    reexport: bool = False

    def permitted_kinds(self, plan: Plan) -> tuple[Kind, ...]:
        """The artifact kinds that may leave: those named, by default the method's own."""
        own: tuple[Kind, ...] = () if plan.artifact is None else (plan.artifact,)
        return tuple(kind for kind in (own if self.kinds is None else self.kinds) if kind not in plan.never_leaves)

    def permits_receiver(self, name: str) -> bool:
        """Whether the site may receive anything."""
        return "*" in self.receivers or name in self.receivers
