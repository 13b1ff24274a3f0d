"""What a site's policy lets out: kinds, receivers, and by default no evaluation."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from peer.core.limits import EVALUATION_SAMPLES_MIN
from peer.core.plan import PLANS
from peer.policy import Egress


def test_kinds_are_those_of_the_method_unless_the_policy_names_others() -> None:
    plan = PLANS["fedskd"]
    assert Egress().permitted_kinds(plan) == ("model",)
    assert Egress(kinds=("head",)).permitted_kinds(plan) == ("head",)
    assert Egress(kinds=("model",)).permitted_kinds(PLANS["local"]) == ()
    assert Egress().permitted_kinds(PLANS["local"]) == ()


def test_receivers_are_all_or_those_that_are_named() -> None:
    assert Egress().permits_receiver("asia")
    only = Egress(receivers=("asia",))
    assert [only.permits_receiver(name) for name in ("asia", "africa")] == [True, False]


def test_nothing_is_evaluated_unless_the_policy_says_so() -> None:
    assert (Egress().evaluate, Egress().evaluation_samples_min) == (False, EVALUATION_SAMPLES_MIN)


@pytest.mark.parametrize("least", [0, -1, 2.5])
def test_a_minimum_of_samples_is_at_least_one(least: float) -> None:
    with pytest.raises(ValidationError):
        Egress.model_validate({"evaluation_samples_min": least})
