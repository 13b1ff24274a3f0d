"""Statistics: one exchange of tables of counts and sums, which each site adds up and writes as a document.

Source: ours; :mod:`peer.methods.statistics.counts` says what a table has and what a site withholds of it. No network
is trained: that of ``[model]`` stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import models
from peer.methods.method import DAM, Batch, BuildContext, Forward, Method, Stage, StageContext, Term, one_step_stage
from peer.methods.statistics.counts import count_records, find_impossible, table_size
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
    """

    table: Tensor
    count: Tensor

    def __init__(self, *, classes: int, cells: int, layout: str) -> None:
        super().__init__()
        self.classes, self.layout = classes, layout
        self.variables: tuple[Variable, ...] = ()
        self.register_buffer("table", torch.zeros(cells, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.zeros = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        zeros: Tensor = self.zeros(x.new_zeros(len(x), self.classes))
        return zeros


def count(context: StageContext) -> Stage:
    """Count all labelled samples of the site, and withhold what is of few people."""
    own, table = context.networks[OWN].network, context.networks[SUMS].network
    terms: dict[str, Term] = {}

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        if not terms:  # a second step would count the same
            records = context.records()
            values = np.array([values_of(record, context.target) for record in records], dtype=np.float64)
            samples, counted = count_records(own.variables, records, values, context.count_min)
            for each in (own, table):
                each.count.fill_(samples)
                each.table.copy_(torch.from_numpy(counted))
            terms["samples"] = Term(own.count.cpu().double(), 0.0)
        return terms

    return one_step_stage({DAM: context.dam, OWN: context.networks[OWN], SUMS: context.networks[SUMS]}, (), losses)


def build_table(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build an empty table of the federation's variables, as a network that has a spec with their digest."""
    bins = int(context.parameters["bins"])
    variables = list_variables(context.columns, context.target, context.class_names, context.classes, bins)
    spec = {
        "name": "peer.methods.statistics.stages:CountTable",
        "spatial_dims": context.spatial_dims,
        "in_channels": context.in_channels,
        "classes": context.classes,
        "hyper": {
            "cells": table_size(variables),
            "layout": hashlib.sha256(repr(variables).encode()).hexdigest(),
        },
        "head": "zeros",
    }
    network = models.build(spec)
    network.network.variables = variables  # type: ignore[union-attr]  # the wrapped table's own
    return network


def describe(networks: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tables of this site and of all say."""
    own, total = networks[OWN].network, networks[SUMS].network
    tables = [(int(each.count), each.table.cpu().numpy()) for each in (own, total)]
    return summarise(own.variables, *tables)


STATISTICS = Method(
    stages={"count": count},
    local_networks={OWN: build_table, SUMS: build_table},
    artifact_network=SUMS,
    check_state=find_impossible,
    bounded=False,
    describe_aggregate=describe,
)
