"""The frame of every HTML page that this program writes: one file with its style inside, and no external resource."""

from __future__ import annotations

import base64
import hashlib
import html
from pathlib import Path

STYLE = Path(__file__).with_suffix(".css")


def escape(value: object) -> str:
    """Text as HTML, for an element's content or a quoted attribute."""
    return html.escape(str(value))


def render_page(title: str, body: str, *, style: str = "", script: str = "", images: bool = False) -> str:
    """A page that may load nothing, and run nothing but this script.

    Its ``content_policy`` is part of it. The body has therefore neither style attributes nor event
    handlers.
    """
    policy = content_policy(style=style, script=script, images=images)
    lines = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{escape(title)}</title>",
        f"<style>{_whole_style(style)}</style>",
        *([f"<script>{script}</script>"] if script else []),
        f"</head>\n<body>\n{body}\n</body>\n</html>\n",
    ]
    return "\n".join(lines)


def content_policy(*, style: str = "", script: str = "", images: bool = False) -> str:
    """The Content-Security-Policy of a page: exactly this style and script, by their hashes, and
    requests to the page's own address alone where a script runs.

    ``images``: the page has pictures inside, as data URIs.
    """
    styles = _hash_source(_whole_style(style))
    allowed = ["default-src 'none'", f"style-src {styles}", "base-uri 'none'", "form-action 'none'"]
    if images:
        allowed.append("img-src data:")
    if script:
        allowed += [f"script-src {_hash_source(script)}", "connect-src 'self'"]
    return "; ".join(allowed)


def _whole_style(style: str) -> str:
    return f"\n{STYLE.read_text('utf-8')}{style}"


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
