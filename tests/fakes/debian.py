"""Data files of Debian packages, as the tests find them."""

from pathlib import Path

UNPACKED = Path(__file__).parents[2] / "build" / "debian"
"""The folder that .ci/run unpacks packages into."""


def debian_root(path: str) -> Path | None:
    """Return the folder below which a package's file lies: that of the system, or of .ci/run; None without the file."""
    return next((root for root in (Path("/"), UNPACKED) if (root / path).is_file()), None)
