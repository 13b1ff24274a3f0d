"""Means of a round that sites lived in two epochs: they are of other members, and are not compared."""

from __future__ import annotations

from typing import Any

import pytest

from peer.core import events
from peer.core.messages import ChainHead, Heartbeat
from peer.core.roster import Sha256, SiteName

FOUR = ("africa", "america", "asia", "europe")
NEW, MEAN = Sha256("1" * 64), Sha256("a" * 64)


def tell(site: Any, name: str, *, head: ChainHead | None) -> None:
    """A peer tells its mean of round 1."""
    site.feed(events.PeerHeard(SiteName(name), Heartbeat(1, 1, "train", 0.0, 1, 1, aggregate=MEAN, head=head)))


def compared(site: Any) -> list[str]:
    return [body["site"] for kind, _, body in site.audit.rows if kind == "compared"]


@pytest.mark.parametrize("learns", ["before the commit", "after it"])
def test_a_site_that_learns_late_of_a_round_s_epoch_compares_and_tells_no_mean_of_it(
    fetching: Any, learns: str
) -> None:
    for name in ("africa", "america", "asia"):
        fetching.deliver(name)
    if learns == "before the commit":
        fetching.learn(members="africa asia europe")
    fetching.finish()
    if learns == "after it":
        assert fetching.site.pulse().aggregate is not None
        fetching.learn(members="africa asia europe")
    assert fetching.body("committed")["contributors"] == list(FOUR)
    tell(fetching, "asia", head=ChainHead(1, NEW))
    assert compared(fetching) == []
    assert fetching.site.pulse().aggregate is None


def test_the_mean_of_a_peer_without_the_round_s_amendment_is_not_compared(fetching: Any) -> None:
    fetching.learn(members="africa asia europe")
    for name in ("africa", "asia"):
        fetching.deliver(name)
    fetching.finish()
    assert fetching.body("committed")["contributors"] == ["africa", "asia", "europe"]
    tell(fetching, "asia", head=None)
    assert compared(fetching) == []
    tell(fetching, "africa", head=ChainHead(1, NEW))
    assert compared(fetching) == ["africa"], "it would tell no mean of another epoch"
    assert fetching.site.pulse().aggregate is not None
