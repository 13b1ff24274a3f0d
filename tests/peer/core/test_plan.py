"""A plan that contradicts itself is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peer.core.plan import Parameter, Work
from peer.methods.registry import PLANS


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"implementation": "peer.methods.fedskd.stages"}, "must be module:OBJECT, not 'peer.methods.fedskd.stages'"),
        ({"stages": {"other": Work("step", 1, 0.1)}}, r"phases name the stages \['train'\], the table has \['other'\]"),
        ({"parameters": {"package": Parameter(1, "")}}, "a parameter must not be called 'package'"),
        ({"circulating_share": "rho"}, "there is no parameter 'rho'"),
        ({"visits": "activation"}, "the pattern `visit`, and no other, has a parameter"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(PLANS["fedskd"], **changes)
