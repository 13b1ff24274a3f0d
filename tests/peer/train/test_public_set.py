"""The public set: the same files at every site, or a refusal at the start that says which digest is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.training import initialise
from peer.core import commands
from peer.train.data.datalist import inspect_datalist
from peer.train.errors import UnusableConfigurationError
from peer.train.public_set import digest_images
from peer.train.trainer import Trainer


def refusal(setting: Any) -> str:
    with pytest.raises(UnusableConfigurationError) as caught:
        Trainer(setting).perform(commands.Initialise(1, 1))
    return str(caught.value)


def test_a_site_with_the_pinned_set_begins(make_setting: Any) -> None:
    trainer = Trainer(make_setting(method={"name": "fedmd"}))
    assert initialise(trainer).state
    assert trainer.site_networks.networks["public"].images.shape == (10, 2, 24)


def test_another_set_is_refused_at_the_start_with_the_remedy(make_setting: Any, signals: Path) -> None:
    setting = make_setting(method={"name": "fedmd"})
    pinned = setting.federation["method"]["public_sha256"]
    np.savez(signals / "training3.npz", image=np.ones((2, 24), dtype=np.float32))
    digest = digest_images(inspect_datalist(signals / "datalist.json", with_labels=False).training)
    assert refusal(setting) == (
        f"[data] public: {signals / 'datalist.json'} has the digest {digest}, but federation.toml pins {pinned}; copy "
        "the set that the federation has agreed on, or pin this one at all sites with [method] public_sha256 = "
        f'"{digest}"'
    )


def test_a_set_that_is_missing_or_too_large_is_refused(make_setting: Any, signals: Path) -> None:
    chosen = {"name": "fedmd", "public_sha256": "ab" * 32}
    assert refusal(make_setting(method=chosen)).startswith("[data] public is missing: fedmd predicts")
    assert "public.json cannot be read" in refusal(make_setting(method=chosen, data={"public": "public.json"}))
    many = ["training0.npz"] * 4097
    (signals / "public.json").write_text(json.dumps({"training": many}))
    assert "4097 images; take at most 4096" in refusal(make_setting(method=chosen, data={"public": "public.json"}))


def test_the_digest_is_of_the_files_in_their_order_and_not_of_their_names(signals: Path, tmp_path: Path) -> None:
    samples = inspect_datalist(signals / "datalist.json", with_labels=False).training
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    entries = []
    for number, sample in enumerate(samples):
        (renamed / f"{number}.npz").write_bytes(sample.images[0].read_bytes())
        entries.append(f"{number}.npz")
    (renamed / "datalist.json").write_text(json.dumps({"training": entries}))
    copied = inspect_datalist(renamed / "datalist.json", with_labels=False).training
    assert digest_images(copied) == digest_images(samples)
    assert digest_images(copied[::-1]) != digest_images(samples)
