"""The secret of a site from which the noise on what it sends derives: nobody who lacks it can take the noise away."""

from __future__ import annotations

import secrets
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from peer.core.roster import Sha256
from peer.errors import DiskError, StateError
from peer.files import write_file

FILE = "noise.key"
KEY_BYTES = 32
INFO = b"mhfl noise key 1"


def read_noise_key(pki: Path) -> bytes:
    """Read the site's secret, 32 bytes; make it if it is missing.

    After a loss, stages that are repeated have other noise: they are charged once more.

    Raises:
        DiskError: the file can be neither read nor written.
        StateError: it is damaged.
    """
    path = pki / FILE
    try:
        key = bytes.fromhex(path.read_text("ascii"))
    except FileNotFoundError:
        key = secrets.token_bytes(KEY_BYTES)
        try:
            write_file(path, key.hex().encode(), 0o600)
        except OSError as error:
            raise DiskError(f"{path} cannot be written: {error.strerror}") from error
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StateError(f"{path} is damaged", "put it back from a backup, or delete it: the site then makes another")
    return key


def generation_noise_key(secret: bytes, federation: Sha256, generation: int) -> bytes:
    """Derive the key of one generation, which its worker gets: ``pki/`` is hidden from it."""
    info = INFO + bytes.fromhex(federation) + generation.to_bytes(8, "big")
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)
