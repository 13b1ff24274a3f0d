"""The secrets of a site's sums on disk: a file a round, which neither a backup nor a journal has.

Whoever reads a file can remove the masks that this site has put on its artifact of that round. So the files are
deleted once no member can need an opening any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer.core.roster import SiteName, site_name
from peer.files import clear_unfinished, sync_folder, write_file
from peer.site.sums.pair_keys import SEED_BYTES, SumSecrets

SUFFIX = ".key"
FILE_NAME = re.compile(r"([1-9][0-9]{0,8})\.key")


class SumSecretFiles:
    """Keeps the secrets of one generation's sums; the folder has mode 0700, its files 0600.

    Every change is durable when its method returns. A damaged file counts as none. Methods may raise ``OSError``. One
    object has the folder to itself: it first deletes what a crash left half written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clear_unfinished(folder)

    def prepare(self) -> None:
        """Make the folder; a worker that starts later can be kept from reading it (``peer.landlock``)."""
        if not self.folder.exists():
            self.folder.mkdir(mode=0o700)
            sync_folder(self.folder.parent)

    def draw(self, round: int) -> bytes:
        """Draw a round's secrets, and return the public key, 32 bytes.

        Earlier ones are overwritten: a journal without their key may have been put back, and another artifact may have
        been masked with them.
        """
        secrets = SumSecrets.draw()
        self.prepare()
        self._write(round, secrets, {})
        return secrets.public_key

    def load(self, round: int) -> SumSecrets | None:
        """Return a round's secrets; ``None`` if this site has none, or their file is damaged."""
        content = self._read(round)
        return None if content is None else content[0]

    def pair_seeds(self, round: int) -> Mapping[SiteName, bytes]:
        """Return the seeds with which this site has masked its artifact of a round, by the other site."""
        content = self._read(round)
        return {} if content is None else content[1]

    def keep_pair_seeds(self, round: int, seeds: Mapping[SiteName, bytes]) -> None:
        """Add seeds to those of a round, so that the site can open them after a restart.

        Raises:
            ValueError: this site has no secrets of that round.
        """
        content = self._read(round)
        if content is None:
            raise ValueError(f"this site has no secrets of the sum of round {round}")
        secrets, before = content
        self._write(round, secrets, {**before, **seeds})

    def rounds(self) -> frozenset[int]:
        """Return the rounds of which this site has secrets."""
        return frozenset(round for round in self._numbers() if self.load(round) is not None)

    def forget(self, before: int) -> None:
        """Delete the secrets of the rounds before this one."""
        old = [round for round in self._numbers() if round < before]
        for round in old:
            self._path(round).unlink(missing_ok=True)
        if old:
            sync_folder(self.folder)

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}{SUFFIX}"

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        names = (FILE_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in names if name is not None)

    def _write(self, round: int, secrets: SumSecrets, pairs: Mapping[SiteName, bytes]) -> None:
        document = {
            "private_key": secrets.private_key.hex(),
            "own_seed": secrets.own_seed.hex(),
            "pairs": {name: seed.hex() for name, seed in sorted(pairs.items())},
        }
        write_file(self._path(round), json.dumps(document).encode("ascii"), 0o600)

    def _read(self, round: int) -> tuple[SumSecrets, dict[SiteName, bytes]] | None:
        try:
            content = self._path(round).read_bytes()
        except FileNotFoundError:
            return None
        try:
            document = json.loads(content)
            secrets = SumSecrets(_seed(document["private_key"]), _seed(document["own_seed"]))
            return secrets, {site_name(name): _seed(seed) for name, seed in document["pairs"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def _seed(text: Any) -> bytes:
    """Decode 32 bytes in hex. Raises ``ValueError`` or ``TypeError`` for anything else."""
    seed = bytes.fromhex(text)
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    return seed
