"""The frame of pages: what it permits is exactly what it has."""

import base64
import hashlib
import re

import pytest
from jinja2 import UndefinedError
from markupsafe import escape

from fakes.templates import render_macro
from peer.web_page import TEMPLATES, Badge, Bar, PageTable, content_policy, environment, render_page


def test_the_policy_permits_the_pages_own_style_and_script_and_nothing_else() -> None:
    page = render_page("base.html.j2", title="t", styles=["dashboard.css"], script="refresh.js")
    policy = content_policy(styles=["dashboard.css"], script="refresh.js")
    assert escape(policy) in page
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    without = content_policy(styles=["dashboard.css"])
    assert "script-src" not in without
    assert "connect-src" not in without


def test_a_title_is_text() -> None:
    assert f"<title>{escape('<b>')}&#34;</title>" in render_page("base.html.j2", title='<b>"')


def test_only_a_strict_page_has_a_policy() -> None:
    assert "Content-Security-Policy" not in render_page("base.html.j2", title="t", strict=False)


def test_every_template_escapes_and_refuses_what_is_unknown() -> None:
    templates = sorted(path.name for path in TEMPLATES.glob("*.j2"))
    assert environment().list_templates(extensions=["j2"]) == templates
    for name in templates:
        assert "|safe" not in re.sub(
            r'(?:\.inline|"&thinsp;±&thinsp;")\|safe', "", (TEMPLATES / name).read_text("utf-8")
        )
    with pytest.raises(UndefinedError, match="nothing"):
        environment().from_string("{{ nothing }}").render()


def test_cells_are_text_unless_they_are_badges_or_bars() -> None:
    rows = [("<b>\x1b", 0, None), (Badge("`a` is <lost>", "state lost"), Bar(1.2), "")]
    html = render_macro("parts.html.j2", "table", PageTable(("x", "y", "z"), rows, numbers=["y"]))
    assert '<td data-label="x">&lt;b&gt;</td><td data-label="y" class="number">0</td>' in html
    assert html.count('class="empty">–</td>') == 2
    assert '<span class="state lost"><code>a</code> is &lt;lost&gt;</span>' in html
    assert '<rect width="100" height="8"/></svg>120%' in html


def test_a_matrix_has_headings_on_both_sides() -> None:
    html = render_macro("parts.html.j2", "matrix", ["to a", "to b"], {"from a": [None, "1"], "from b": ["2", None]})
    assert re.findall(r"<th [^>]*>(.*?)</th>", html) == ["", "to a", "to b"]
    assert re.findall(r"<td[^>]*>(.*?)</td>", html) == ["from a", "–", "1", "from b", "2", "–"]
