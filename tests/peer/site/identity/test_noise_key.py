"""The secret of a site's noise: made once, kept, and different for each generation and federation."""

import stat
from pathlib import Path

import pytest

from peer.core.roster import Sha256
from peer.errors import DiskError, StateError
from peer.site.identity.noise_key import FILE, generation_noise_key, read_noise_key


def test_the_key_is_the_user_s_alone_and_stays(tmp_path: Path) -> None:
    key = read_noise_key(tmp_path)
    assert len(key) == 32
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert read_noise_key(tmp_path) == key
    (tmp_path / FILE).unlink()
    assert read_noise_key(tmp_path) != key


@pytest.mark.parametrize("text", ["", "ab", "no key", "ab" * 33])
def test_a_damaged_key_is_never_replaced_in_silence(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StateError, match="is damaged"):
        read_noise_key(tmp_path)
    assert (tmp_path / FILE).read_text() == text


def test_a_key_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="cannot be written"):
        read_noise_key(tmp_path / "missing")


def test_each_generation_of_each_federation_has_a_key_of_its_own() -> None:
    secret, one, other = bytes(32), Sha256("ab" * 32), Sha256("cd" * 32)
    keys = {generation_noise_key(secret, digest, generation) for digest in (one, other) for generation in (1, 2)}
    assert len(keys) == 4
    assert generation_noise_key(secret, one, 1) == generation_noise_key(secret, one, 1)
    assert generation_noise_key(b"k" * 32, one, 1) not in keys
