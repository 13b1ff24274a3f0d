"""Draw ``deploy/picture.svg``, a round of FedVisit by its real schedule; ``--check`` only compares.

Run it from anywhere: ``python deploy/picture.py``. It computes which models visit whom, as the hospitals of
``mhfl-peer demo`` would with the round key below, and draws the visits, the training and the returns.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent
sys.path.insert(0, str(DEPLOY.parent))

from peer.core.roster import RoundKey  # noqa: E402
from peer.core.status import plan_of  # noqa: E402
from peer.lab.demo.presets import DEFAULT_STUDY, FAMILIES, PresetSize, study  # noqa: E402
from peer.site.config.rules import make_rules  # noqa: E402
from peer.site.config.schema import FederationConfig  # noqa: E402 - found beside this script, whether installed or not

METHOD, PICTURE = "fedvisit", DEPLOY / "picture.svg"
ROUND_KEY = RoundKey(bytes([206]) * 32)
NETWORKS = ((26, 20, 14, 8), (14, 14, 14), (24, 24, 16, 16, 8, 8), (20, 10))
"""The heights of each site's layers: every site has a network of its own."""
STEPS = (
    ("1 Models visit", "each goes to another site"),
    ("2 Hosts train them", "beside their own, on local data"),
    ("3 Copies return", "their owner averages them"),
)
PANEL, HEIGHT, TOP = 376, 470, 228
"""Width of a step, height of the picture, and height of the ring's centre."""
RADIUS, CARD = 126, (108, 84)
COLOURS = "abcd"
"""The CSS class of each site."""
STYLE = """
svg { font: 13px system-ui, sans-serif; --ink: #1f2328; --dim: #59636e; --card: #ffffff; --edge: #c8d0d9; }
svg { --page: #ffffff; --a: #0b69c7; --b: #b35900; --c: #1a7f37; --d: #9a3fb5; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #f0f3f6; --dim: #a5afba; --card: #1b222b; --edge: #47515c; }
  svg { --page: #0d1117; --a: #6cb2ff; --b: #f0a35e; --c: #5fcf7b; --d: #dd9bf2; }
}
text { fill: var(--ink); text-anchor: middle; } .dim, .key { fill: var(--dim); } .back { stroke-dasharray: 6 4; }
.key { text-anchor: start; } .round { font-weight: 600; font-size: 15px; }
.card { fill: var(--card); stroke: var(--edge); } .data { fill: none; stroke: var(--dim); }
.a { --own: var(--a); } .b { --own: var(--b); } .c { --own: var(--c); } .d { --own: var(--d); }
.layer { fill: var(--own); } .route { fill: none; stroke: var(--own); stroke-width: 2.5; } .tip { fill: var(--own); }
"""


def main(arguments: list[str] | None = None) -> int:
    """Write the picture; the exit status is 1 if ``--check`` finds it stale, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the picture is stale")
    check = parser.parse_args(arguments).check
    experiment = study(DEFAULT_STUDY, [METHOD], PresetSize())
    (partition,) = experiment.partitions.values()
    example = experiment.federation_text(METHOD, FAMILIES, partition.sites, seed=0)
    text = draw_round(FederationConfig.parse(example, where=DEFAULT_STUDY))
    if PICTURE.exists() and PICTURE.read_text("utf-8") == text:
        return 0
    if check:
        print(f"{PICTURE.relative_to(DEPLOY.parent)} is stale: run python deploy/picture.py", file=sys.stderr)
        return 1
    PICTURE.write_text(text, "utf-8")
    print(f"{PICTURE.relative_to(DEPLOY.parent)} written")
    return 0


def draw_round(federation: FederationConfig) -> str:
    """Return the first round of a federation as SVG, one panel for each step."""
    rules = make_rules(federation, next(iter(federation.roster)), ROUND_KEY, without=frozenset(), stay=False)
    (plan,) = plan_of(rules, rounds=1)["rounds"]
    names, width = list(federation.roster), PANEL * len(STEPS)
    visits = [
        (names.index(owner), names.index(host)) for host, owners in plan["receives_from"].items() for owner in owners
    ]
    words = "; ".join(f"{host} trains {' and '.join(owners)}" for host, owners in plan["receives_from"].items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img">',
        f"<title>A round of FedVisit at four hospitals: models visit, hosts train them, copies return. {words}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{HEIGHT}" rx="8" fill="var(--page)"/>',  # readable on a page of another theme
    ]
    for step, (heading, note) in enumerate(STEPS):
        parts += [
            f'<g transform="translate({step * PANEL} 0)">',
            f'<text class="round" x="{PANEL / 2}" y="22">{heading}</text>',
            f'<text class="dim" x="{PANEL / 2}" y="42">{note}</text>',
        ]
        for owner, host in visits if step != 1 else ():
            ends = (owner, host) if step == 0 else (host, owner)
            parts += _route(*ends, colour=COLOURS[owner], back=step == 2)
        for index, name in enumerate(names):
            parts += _site(index, name, guests=[owner for owner, host in visits if host == index] if step == 1 else ())
        parts.append("</g>")
    return "\n".join([*parts, *_legend(width / 2), "</svg>\n"])


def _legend(middle: float) -> Iterator[str]:
    """The meaning of the signs, in one line."""
    yield f'<g transform="translate({middle - 470} {HEIGHT - 18})">'
    yield from _network(0, 0, -5)
    yield '<text class="key" x="38" y="0">its own network</text>'
    yield from _data(190, -14)
    yield '<text class="key" x="220" y="0">its data, which stays</text>'
    for left, kind, words in (
        (390, "", "a site's model, on a visit"),
        (640, " back", "the same, trained, back to its owner alone"),
    ):
        yield f'<path class="route a{kind}" d="M{left},-5 h26"/>'
        yield f'<polygon class="tip a" points="{left + 34},-5 {left + 24},-10 {left + 24},0"/>'
        yield f'<text class="key" x="{left + 42}" y="0">{words}</text>'
    yield "</g>"


def _network(index: int, left: float, middle: float, *, scale: float = 1.0) -> Iterator[str]:
    """A site's network, one bar a layer."""
    for number, layer in enumerate(NETWORKS[index]):
        place = f'x="{left + number * 8 * scale:.1f}" y="{middle - layer * scale / 2:.1f}"'
        sides = f'width="{5 * scale:.1f}" height="{layer * scale:.1f}"'
        yield f'<rect class="layer {COLOURS[index]}" {place} {sides} rx="1"/>'


def _data(left: float, top: float) -> Iterator[str]:
    yield f'<path class="data" d="M{left:.1f},{top:.1f} v18 a11,4 0 0 0 22,0 v-18 a11,4 0 0 0 -22,0 a11,4 0 0 0 22,0"/>'


def _centre(index: int) -> tuple[float, float]:
    """The centre of a site's card: the first is above the ring's centre, the others follow
    clockwise.
    """
    angle = math.pi / 2 * index
    return PANEL / 2 + RADIUS * 0.92 * math.sin(angle), TOP - RADIUS * math.cos(angle)


def _route(source: int, receiver: int, *, colour: str, back: bool) -> Iterator[str]:
    """An arrow between two cards, bent to the right so that the arrows of both directions stay
    apart.
    """
    (x0, y0), (x1, y1) = _centre(source), _centre(receiver)
    length = math.dist((x0, y0), (x1, y1))
    bend = 16 if abs(source - receiver) % 2 else 22
    cx, cy = (x0 + x1) / 2 - (y1 - y0) / length * bend, (y0 + y1) / 2 + (x1 - x0) / length * bend
    sx, sy = _edge((x0, y0), (cx, cy), gap=2)
    ex, ey = _edge((x1, y1), (cx, cy), gap=9)
    dx, dy = ex - cx, ey - cy
    norm = math.hypot(dx, dy)
    dx, dy = dx / norm, dy / norm
    tip = f"{ex + 7 * dx:.1f},{ey + 7 * dy:.1f}"
    sides = " ".join(f"{ex - 3 * dx + 5 * side * dy:.1f},{ey - 3 * dy - 5 * side * dx:.1f}" for side in (1, -1))
    kind = f"{colour} back" if back else colour
    yield f'<path class="route {kind}" d="M{sx:.1f},{sy:.1f} Q{cx:.1f},{cy:.1f} {ex:.1f},{ey:.1f}"/>'
    yield f'<polygon class="tip {colour}" points="{tip} {sides}"/>'


def _edge(centre: tuple[float, float], towards: tuple[float, float], *, gap: float) -> tuple[float, float]:
    """The point where a line from a card's centre leaves the card, moved by a gap."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    share = min(CARD[0] / 2 / abs(dx) if dx else math.inf, CARD[1] / 2 / abs(dy) if dy else math.inf)
    further = share + gap / math.hypot(dx, dy)
    return centre[0] + dx * further, centre[1] + dy * further


def _site(index: int, name: str, *, guests: Sequence[int]) -> Iterator[str]:
    """A card with the site's name, its own network, its data, which no arrow leaves, and the networks that visit it."""
    (x, y), (wide, high) = _centre(index), CARD
    left, top = x - wide / 2, y - high / 2
    yield f'<rect class="card" x="{left:.1f}" y="{top:.1f}" width="{wide}" height="{high}" rx="8"/>'
    yield f'<text x="{x:.1f}" y="{top + 18:.1f}">{name}</text>'
    yield from _network(index, left + 12, top + 42)
    yield from _data(left + 74, top + 33)
    for place, guest in enumerate(guests):
        yield from _network(guest, left + 12 + 46 * place, top + 70, scale=0.7)


if __name__ == "__main__":
    sys.exit(main())
