"""The names that a site's datalist gives to classes, where the federation has agreed on none."""

from __future__ import annotations

import json
from collections.abc import Mapping

from peer.core.class_numbering import listed_names
from peer.site.config.schema import FederationConfig, SiteConfig


def read_class_names(federation: FederationConfig, site: SiteConfig) -> dict[int, str]:
    """Return the names of the task's classes; none where ``class_names`` decide, or no datalist is there.

    Other numbers, such as raw values of a mask, are no classes.
    """
    task = federation.task
    if task.class_names or task.target != "class" or task.kind == "super_resolution":
        return {}
    try:
        document = json.loads((site.folder / site.data.datalist).read_bytes())
    except (OSError, ValueError, RecursionError):  # the trainer says what is wrong with it
        return {}
    names = listed_names(document) if isinstance(document, Mapping) else {}
    return {number: name for number, name in names.items() if number < task.classes}
