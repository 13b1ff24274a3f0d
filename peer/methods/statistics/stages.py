"""Statistics: one exchange of tables of counts and sums, which each site adds up and writes as a document.

Source: ours; :mod:`peer.methods.statistics.counts` says what a table has and what a site withholds of it, and
:mod:`peer.methods.statistics.person_sums` what it has in a federation with noise. No network is trained: that of
``[model]`` stays as it is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import models
from peer.methods.method import DAM, Batch, BuildContext, Forward, Method, Stage, StageContext, Term, one_step_stage
from peer.methods.statistics import counts, person_sums
from peer.methods.statistics.noisy_summary import summarise_people
from peer.methods.statistics.summary import summarise
from peer.methods.statistics.variables import Variable, list_variables, values_of

SUMS, OWN = "sums", "own_sums"
"""The table that is sent, and after the aggregate that of all sites; and this site's own, as it was sent."""


class CountTable(nn.Module):
    """Counts and sums over samples, as the state that a site sends: int64.

    Shapes: ``table (cells)``, ``count ()``, the number of samples. As a network it predicts 0 for every class.

    Args:
        cells: the length of the table.
        layout: the SHA-256 of its variables; tables of other variables do not add up.
        noised: whether each site's table has noise. Then it is of people, and ``count`` is the number of sites.

    Attributes:
        noise_multiplier: the standard deviation of this site's noise, in units of what one person changes.
    """

    table: Tensor
    count: Tensor

    def __init__(self, *, classes: int, cells: int, layout: str, noised: bool = False) -> None:
        super().__init__()
        self.classes, self.layout, self.noised, self.noise_multiplier = classes, layout, noised, 0.0
        self.variables: tuple[Variable, ...] = ()
        self.register_buffer("table", torch.zeros(cells, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.zeros = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        zeros: Tensor = self.zeros(x.new_zeros(len(x), self.classes))
        return zeros


def count(context: StageContext) -> Stage:
    """Count all labelled samples of the site, and withhold what is of few people; with noise, its people."""
    own, table = context.networks[OWN].network, context.networks[SUMS].network
    terms: dict[str, Term] = {}

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        if not terms:  # a second step would count the same
            records = context.records()
            values = np.array([values_of(record, context.target) for record in records], dtype=np.float64)
            if context.noise is None:
                samples, counted = counts.count_records(own.variables, records, values, context.count_min)
                own.count.fill_(samples)
                own.table.copy_(torch.from_numpy(counted))
                table.load_state_dict(own.state_dict())
            else:
                own.count.fill_(1)
                own.table.copy_(torch.from_numpy(person_sums.sum_people(own.variables, records, values)))
                table.count.fill_(1)
                table.table.copy_(person_sums.add_noise(own.table, context.noise))
            terms["samples"] = Term(torch.tensor(float(len(records)), dtype=torch.float64), 0.0)
        return terms

    return one_step_stage({DAM: context.dam, OWN: context.networks[OWN], SUMS: context.networks[SUMS]}, (), losses)


def build_table(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build an empty table of the federation's variables, as a network that has a spec with their digest."""
    bins = int(context.parameters["bins"])
    variables = list_variables(context.columns, context.target, context.class_names, context.classes, bins)
    cells = person_sums.list_places(variables)[1] if context.noised else counts.table_size(variables)
    spec = {
        "name": "peer.methods.statistics.stages:CountTable",
        "spatial_dims": context.spatial_dims,
        "in_channels": context.in_channels,
        "classes": context.classes,
        "hyper": {
            "cells": cells,
            "layout": hashlib.sha256(repr(variables).encode()).hexdigest(),
            **({"noised": True} if context.noised else {}),
        },
        "head": "zeros",
    }
    network = models.build(spec)
    table: Any = network.network
    table.variables, table.noise_multiplier = variables, context.noise_multiplier
    return network


def describe(networks: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tables of this site and of all say."""
    own, total = networks[OWN].network, networks[SUMS].network
    tables = [each.table.cpu().numpy() for each in (own, total)]
    if not total.noised:
        return summarise(own.variables, *((int(each.count), each.table.cpu().numpy()) for each in (own, total)))
    deviation = person_sums.deviation_of(total.noise_multiplier, len(total.table)) * math.sqrt(int(total.count))
    in_people = person_sums.unit_in_people(own.variables)
    of_own, of_all = (table * in_people for table in tables)
    return summarise_people(own.variables, of_own, of_all, deviation * in_people)


def find_impossible(state: Mapping[str, Tensor], network: Any, sites: int = 1) -> str | None:
    """Return why no samples of so many sites have the counts of a table; ``None`` if some may have."""
    judge = person_sums.find_impossible if network.network.noised else counts.find_impossible
    return judge(state, network, sites)


STATISTICS = Method(
    stages={"count": count},
    local_networks={OWN: build_table, SUMS: build_table},
    artifact_network=SUMS,
    check_state=find_impossible,
    bounded=False,
    describe_aggregate=describe,
)
