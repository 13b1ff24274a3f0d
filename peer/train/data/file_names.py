"""File names as people type them: in another Unicode form or case, or with invisible signs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from peer.core.class_numbering import plain_name

LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
NAMES_SHOWN_MAX = 5  # a problem that a thousand files share is one line


def find_file(path: Path) -> Path:
    """Return the file of this name, also where its folder has the name in another Unicode form, without invisible
    signs, or with slashes for the backslashes of Windows; the path itself if there is none.
    """
    if path.exists():
        return path
    text = str(path)
    for plain in (text, text.replace("\\", "/")):
        visible = "".join(sign for sign in plain if unicodedata.category(sign) != "Cf")
        for name in (plain, visible):
            for form in ("NFC", "NFD"):
                other = Path(unicodedata.normalize(form, name))
                if other.exists():
                    return other
    return path


def describe_missing(path: Path) -> str:
    """Write the name of a file that is not there, and which file of its folder has almost that name."""
    shown = "".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" for sign in str(path))
    wanted = _nearly(path.name)
    try:
        names = sorted(file.name for file in path.parent.iterdir())
    except OSError:
        return shown
    near = [name for name in names if _nearly(name) == wanted]
    near += [name for name in names if _nearly(name).partition(".")[0] == wanted.partition(".")[0]]
    return f"{shown} (did you mean {near[0]}?)" if near else shown


def _nearly(name: str) -> str:
    """Return a name without case, invisible signs, wide digits and zeros in front of numbers."""
    return LEADING_ZEROS.sub("", plain_name(unicodedata.normalize("NFKC", name)))


def named(names: Iterable[str]) -> str:
    """Join the names in one line; of many, the first few and a count of the others."""
    listed = list(names)
    more = f" and {len(listed) - NAMES_SHOWN_MAX} more" if len(listed) > NAMES_SHOWN_MAX else ""
    return ", ".join(listed[:NAMES_SHOWN_MAX]) + more
