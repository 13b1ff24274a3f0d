"""The frame of pages: what it permits is exactly what it has."""

import base64
import hashlib
import re

from peer.web_page import content_policy, escape, render_page


def test_the_policy_permits_the_pages_own_style_and_script_and_nothing_else() -> None:
    page = render_page("t", "<p>body</p>", style="p { color: red; }", script="let a = 1;")
    policy = content_policy(style="p { color: red; }", script="let a = 1;")
    assert escape(policy) in page
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    without = content_policy(style="p {}")
    assert "script-src" not in without
    assert "connect-src" not in without


def test_a_title_is_text() -> None:
    assert "<title>&lt;b&gt;&quot;</title>" in render_page('<b>"', "")
