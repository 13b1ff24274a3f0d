"""Published sets whose pictures lie in ``{train,val,test}/<class>`` and whose file names begin with the subject.

Equal subjects of different classes and published sides count as one. All pictures are in ``training``, with the
published side as ``published_split``: a fold that is made by ``subject`` divides no patient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peer.data.adapters import picture_files
from peer.data.adapters.public_set import Adapter, Publication, PublicSet, pictures

SIDES = ("train", "val", "test")


def adapter(
    publication: Publication,
    *,
    marker: str,
    site: str,
    name: re.Pattern[str],
    mode: str | None = None,
    further: Callable[[Path], Mapping[str, Any]] = lambda path: {},
) -> Adapter:
    """The adapter of such a set.

    Args:
        publication: what the set is.
        marker: the folder of a class on the side ``train``, by which the set is found.
        site: of all samples.
        name: matches a picture's whole name without its ending; the first group is the subject.
        mode: where the release has pictures of another mode, a copy in this one is made.
        further: further keys of a picture's entry.
    """

    def gather(pool: PublicSet, found: Path) -> None:
        for side in SIDES:
            for label, folder in enumerate(publication.classes):
                for path in pictures(found.parents[1] / side / folder):
                    if (match := pool.match(name, path.stem)) is None:
                        continue
                    image = str(path)
                    if mode is not None:
                        copy = Path("images") / f"{side}-{path.stem}.png"
                        image = picture_files.entry(path, mode=mode, out=pool.out, copy=copy)
                    own = {"image": image, "label": label, "subject": match[1], "site": site}
                    pool.add({**own, **further(path), "published_split": side})

    return Adapter(publication, gather, [[marker]])
