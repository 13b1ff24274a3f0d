"""The examples of federation.toml and site.toml are valid, and show and explain every key."""

import itertools
import re
import tomllib
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from peer.errors import ConfigError
from peer.methods.registry import PLANS
from peer.site.config.schema import FederationConfig, SiteConfig, check_site

EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"


def uncommented(path: Path) -> str:
    """An example whose commented keys count: the lines that start with ``#`` and no space."""
    return re.sub(r"(?m)^#(?=\S)", "", path.read_text())


def missing_keys(model: type[BaseModel], document: Mapping[str, Any]) -> set[str]:
    """The fields of a model, and of the tables in it, that the document lacks."""
    missing = {name for name in model.model_fields if name not in document}
    for name, field in model.model_fields.items():
        inner = document.get(name)
        inner_types = () if get_origin(field.annotation) is dict else get_args(field.annotation)
        for candidate in (field.annotation, *inner_types):
            if (
                isinstance(candidate, type)
                and issubclass(candidate, BaseModel)
                and inner
                and not isinstance(inner, str)
            ):
                table = dict(ChainMap(*inner)) if isinstance(inner, list) else inner
                missing |= {f"{name}.{key}" for key in missing_keys(candidate, table)}
    return missing


def test_example_federation_is_valid_and_shows_every_key() -> None:
    example = FederationConfig.load(EXAMPLES / "federation.toml")
    assert len(example.roster) == 4
    document = tomllib.loads(uncommented(EXAMPLES / "federation.toml"))
    of_noise = re.compile(r"^(epsilon|people|members_min) = .*\n", re.MULTILINE)  # which the example does not have
    full = FederationConfig.parse(of_noise.sub("", uncommented(EXAMPLES / "federation.toml")), "full")
    only_in_tables_md = {f"task.{key}" for key in ("column", "horizon", "range", "unit")}
    assert missing_keys(FederationConfig, document) == only_in_tables_md
    assert set(document["stages"]["train"]) == {"unit", "count", "learning_rate", "weight_decay", "decay"}
    assert set(document["method"]) == {"name", *PLANS["fedskd"].parameters}
    shown = {**dict.fromkeys(("ca_certificate", "quorum", "shared_model", "pace"), True), "site": {"__all__": {"key"}}}
    shown["task"] = {"class_names"}
    assert full.model_dump(exclude=shown) == example.model_dump(exclude=shown)
    full_pace, pace = (config.pace.model_dump(exclude={"gather_s", "beat_s"}) for config in (full, example))
    assert full_pace == pace


def test_example_site_is_valid_and_shows_every_key(tmp_path: Path) -> None:
    example = SiteConfig.load(EXAMPLES / "site.toml")
    check_site(FederationConfig.load(EXAMPLES / "federation.toml"), example, "europe")
    (tmp_path / "site.toml").write_text(uncommented(EXAMPLES / "site.toml"))
    full = SiteConfig.load(tmp_path / "site.toml")
    with pytest.raises(
        ConfigError, match=r"data.scale: .*; leave it out, and training.class_weights: with class_sampling"
    ):
        check_site(FederationConfig.load(EXAMPLES / "federation.toml"), full, "europe")
    assert missing_keys(SiteConfig, tomllib.loads(uncommented(EXAMPLES / "site.toml"))) == set()
    shown = {"addresses": True, "data": {"root": True, "public": True, "regions": True, "scale": True,
             "spacing": True, "intensity": True, "nan": True, "columns": True, "augmentation": {"flip"}},
             "base_weights": True,
             "model": {"features", "head", "parameters", "weights", "weights_sha256", "adapters"},
             "egress": {"kinds", "bytes_per_round_max", "leak_auc_max"}, "privacy": {"epsilon_max"},
             "training": {"gpu_folder", "class_weights", "class_sampling", "clip_norm"},
             "connect": {"peers", "password_file", "relays", "relay_listen"}, "reference": True,
             "limits": {"connections_max"}}  # fmt: skip
    assert full.model_dump(exclude=shown) == example.model_dump(exclude=shown)


@pytest.mark.parametrize("name", ["federation.toml", "site.toml"])
def test_examples_explain_each_key(name: str) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        if re.match(r"#?[a-z_]+ = ", line) and not re.match(
            r"#?(name|address|description|asia|width|chest_pain) = ", line
        ):
            assert before.startswith("# "), line
