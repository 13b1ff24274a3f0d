"""Texts of ``federation.toml``, ``site.toml`` and an experiment, from the keys in which tests differ."""

from collections.abc import Mapping
from typing import Any

from peer.site.config import toml

DERANGEMENT = {"kind": "derangement"}


def task(spatial_dims: int = 1, *, kind: str = "classification", in_channels: int = 1) -> Mapping[str, Any]:
    return {"kind": kind, "spatial_dims": spatial_dims, "in_channels": in_channels, "classes": 2}


def draft(name: str, *, rounds: int = 3, method: str | Mapping[str, Any] = "fedskd", **keys: Any) -> str:
    """A ``federation.toml`` without its sites; further keys and tables win over what is here."""
    named = {"name": method} if isinstance(method, str) else method
    return toml.text({"name": name, "rounds": rounds, "task": task(), "method": named, **keys})


def site_text(*input_size: int, datalist: object = "datalist.json", regions: str = "", **tables: Any) -> str:
    """A ``site.toml`` for training on the CPU; further tables win over what is here."""
    data = {"datalist": str(datalist), "input_size": list(input_size or (8,))} | (
        {"regions": regions} if regions else {}
    )
    return toml.text({"data": data, "training": {"device": "cpu"}, **tables})


EXPERIMENT = toml.text(
    {
        "name": "trial",
        "rounds": 1,
        "test_share": 0.25,
        "task": task(2),
        "data": {"pool": "pool.json", "input_size": [8, 8]},
        "training": {"device": "cpu", "batch_size": 4},
        "budget": {"steps": 1},
        "partitions": {"even": {"kind": "equal", "sites": ["asia", "europe"]}},
        "models": {"small": {"*": {"name": "resnet5", "width": 4, "max_pool": False}}},
        "methods": {"local": {}},
    }
)
"""One run of one round at two sites."""
