"""Values that federation.toml and site.toml have in common: names, digests and classes."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import AfterValidator, Field

from models.spec import HYPER
from peer.core import roster
from peer.site.config.toml import matching, suggestion

CLASS_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MODEL_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")
DIGEST = re.compile(r"[0-9a-f]{64}")
NAME_LENGTH_MAX = 32
"""Of a site or a federation, as `peer.core.roster.SITE_NAME` has it."""
TEXT_LENGTH_MAX = 64
"""Of a class's name: a table shows it whole."""


def _digest(text: str) -> str:
    """Return a digest in hex. Other programs write capitals and colons, which are accepted."""
    return roster.sha256(text.replace(":", "").lower())


def _model_name(text: str) -> str:
    if not MODEL_NAME.fullmatch(text):
        hint = suggestion(text, HYPER) if "." not in text and ":" not in text else ""
        raise ValueError(f"{text!r} is not a model's name or package.module:Class{hint}")
    return text


def _name(text: str) -> str:
    if not roster.SITE_NAME.fullmatch(text):
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
        guess = re.sub("[^a-z0-9]+", "-", plain)[:NAME_LENGTH_MAX].strip("-")
        raise ValueError(
            f"name {text!r} must be 1 to {NAME_LENGTH_MAX} lower-case letters, digits or hyphens, with no hyphen at "
            "either end" + (f" (such as {guess!r})" if guess else "")
        )
    return text


def _text(text: str) -> str:
    if not text.strip() or len(text) > TEXT_LENGTH_MAX or not text.isprintable():
        raise ValueError(f"{text[:TEXT_LENGTH_MAX]!r} is not a text of 1 to {TEXT_LENGTH_MAX} printable characters")
    return text


Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, AfterValidator(_text)]
ModelName = Annotated[str, AfterValidator(_model_name)]
Digest = Annotated[str, AfterValidator(_digest)]
ClassName = Annotated[str, matching(CLASS_NAME, "package.module:Class")]
