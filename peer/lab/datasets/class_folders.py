"""Published sets with pictures in ``{train,val,test}/<class>`` and file names that begin with the subject.

Equal subject numbers of different classes and published splits count as one subject. The adapter
puts all pictures into ``training``, with the published split as ``published_split``: a fold that is
drawn by ``subject`` divides no patient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peer.lab.datasets import picture_files
from peer.lab.datasets.public_set import Adapter, Publication, PublicSet, list_pictures

SIDES = ("train", "val", "test")


def make_adapter(
    publication: Publication,
    *,
    marker: str,
    site: str,
    name: re.Pattern[str],
    mode: str | None = None,
    extra_keys: Callable[[Path], Mapping[str, Any]] = lambda path: {},
) -> Adapter:
    """Build the adapter of such a set.

    Args:
        marker: the folder of a class in the split ``train``, by which `locate` finds the set.
        name: matches a picture's whole name without its ending; the first group is the subject.
        mode: a picture of another mode is copied into this one; None: pictures stay unchanged.
        extra_keys: returns further keys of a picture's entry.
    """

    def gather(pool: PublicSet, class_folder: Path) -> None:
        for side in SIDES:
            for label, folder in enumerate(publication.classes):
                for path in list_pictures(class_folder.parents[1] / side / folder):
                    if (match := pool.match(name, path.stem)) is None:
                        continue
                    image = str(path)
                    if mode is not None:
                        copy = Path("images") / f"{side}-{path.stem}.png"
                        image = picture_files.readable_path(path, mode=mode, out=pool.out, copy=copy)
                    keys = {**extra_keys(path), "published_split": side}
                    pool.add(image=image, label=label, subject=match[1], site=site, **keys)

    return Adapter(publication, gather, [[marker]])
