"""A page as Chromium shows it: its picture, and what a script measures in it at a width and in a colour scheme."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Literal

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LIMIT_S = 120.0
VIRTUAL_MS = 4000
LETTER_PIXELS_MIN = 11.0
CONTRAST_MIN = 4.5
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
MEASURE = """
const inside = frame.contentDocument, window_ = frame.contentWindow, width = frame.clientWidth;
const box = element => element.getBoundingClientRect();
const visible = element => { const b = box(element); return b.width > 0 && b.height > 0; };
const texts = [...inside.querySelectorAll("svg text")].filter(visible);
const beside = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 2;
const apart = (a, b) => beside(a, b) || beside(b, a);
const within = (a, b) => [a.left - b.left, b.right - a.right, a.top - b.top, b.bottom - a.bottom].every(d => d >= -1);
const overlaps = [];
for (const picture of inside.querySelectorAll("svg")) {
  const own = [...picture.querySelectorAll("text, .site > circle")].filter(visible);
  own.forEach((a, index) => own.slice(index + 1).forEach(b => {
    const number = a.closest("g.site") === b.closest("g.site") && a.tagName === "circle" && b.matches(".inside");
    if (!number && !apart(box(a), box(b))) overlaps.push(`${a.textContent || "node"} | ${b.textContent || "node"}`);
  }));
}
const written = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
const leaves = [...inside.querySelectorAll("body *")].filter(element => visible(element) && written(element));
const back = element => {
  for (let e = element; e; e = e.parentElement) {
    const colour = window_.getComputedStyle(e).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
};
result.textContent = JSON.stringify({
  overflow: inside.documentElement.scrollWidth - width,
  outside: leaves.filter(e => !e.closest(".wide") && (box(e).right > width + 1 || box(e).left < -1))
    .map(e => e.textContent.slice(0, 40)),
  overlaps,
  cut: texts.filter(e => !within(box(e), box(e.closest("svg")))).map(e => e.textContent),
  letters: Math.min(...texts.map(e => box(e).height)),
  colours: [...new Set(leaves.filter(e => !e.closest(".picture")).map(e => {
    const style = window_.getComputedStyle(e);
    return JSON.stringify([e.closest("svg") ? style.fill : style.color, back(e), e.textContent.slice(0, 30)]);
  }))].map(JSON.parse),
});
"""


def run(*arguments: str, scheme: Literal["light", "dark"] = "light") -> subprocess.CompletedProcess[str]:
    """Chromium without a window, in a profile of its own."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory() as profile:
        command = [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--disable-background-networking"]
        command += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": LIMIT_S, "check": True}
        return subprocess.run([*command, *arguments], **options)


def measure(page: str, folder: Path, *, width: int, scheme: Literal["light", "dark"]) -> dict[str, Any]:
    """What ``MEASURE`` measures in a page, whose policy is taken off so that this script may look into it."""
    framed = html.escape(POLICY.sub("", page), quote=True)
    wrapper = folder / "frame.html"
    wrapper.write_text(
        f'<!doctype html><meta charset="utf-8"><body style="margin:0"><iframe id="frame" width="{width}" height="3000" '
        f'style="border:0" srcdoc="{framed}"></iframe><pre id="result"></pre>'
        f"<script>frame.onload = () => {{ {MEASURE} }}</script>"
    )
    shown = run(
        "--window-size=1600,3200", f"--virtual-time-budget={VIRTUAL_MS}", "--dump-dom", wrapper.as_uri(), scheme=scheme
    )
    match = re.search(r'<pre id="result">(.*?)</pre>', shown.stdout, re.DOTALL)
    assert match is not None, shown.stderr[-2000:]
    document: dict[str, Any] = json.loads(html.unescape(match[1]))
    return document


def assert_legible(page: str, folder: Path, *, width: int, scheme: Literal["light", "dark"]) -> None:
    """Assert that nothing runs out of the page, overlaps or is cut off, and that letters are large and clear enough."""
    measured = measure(page, folder, width=width, scheme=scheme)
    assert (measured["overflow"], measured["outside"], measured["overlaps"], measured["cut"]) == (0, [], [], [])
    assert (measured["letters"] or LETTER_PIXELS_MIN) >= LETTER_PIXELS_MIN, "null without letters in drawings"
    words = [entry for entry in measured["colours"] if any(map(str.isalnum, entry[2]))]
    assert [entry for entry in words if contrast(*entry[:2]) < CONTRAST_MIN] == []


def contrast(colour: str, back: str) -> float:
    """The ratio of two colours' luminances as WCAG 2 has it, from 1 to 21."""
    first, second = sorted(map(_luminance, (colour, back)), reverse=True)
    return (first + 0.05) / (second + 0.05)


def _luminance(colour: str) -> float:
    shares = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
