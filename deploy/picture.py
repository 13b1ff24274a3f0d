"""Draw ``deploy/picture.svg`` from a federation's real schedule; ``--check`` only compares.

Run it from anywhere: ``python deploy/picture.py``. It computes who receives from whom, as the sites
of ``deploy/examples/federation.toml`` would with the round key below, and draws the first rounds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent
sys.path.insert(0, str(DEPLOY.parent))

from peer.core.roster import RoundKey  # noqa: E402
from peer.core.status import plan_of  # noqa: E402
from peer.site.config.rules import make_rules  # noqa: E402
from peer.site.config.schema import FederationConfig  # noqa: E402 - found beside this script, whether installed or not

PICTURE = DEPLOY / "picture.svg"
ROUND_KEY = RoundKey(bytes([206]) * 32)
ROUNDS = 3
NETWORKS = ((26, 20, 14, 8), (14, 14, 14), (24, 24, 16, 16, 8, 8), (20, 10))
"""The heights of each site's layers: every site has a network of its own."""
PANEL, HEIGHT, TOP = 320, 408, 186
"""Width of a round, height of the picture, and height of the ring's centre."""
RADIUS, CARD = 112, (104, 66)
COLOURS = "abcd"
"""The CSS class of each site."""
STYLE = """
svg { font: 13px system-ui, sans-serif; --ink: #1f2328; --dim: #59636e; --card: #ffffff; --edge: #c8d0d9; }
svg { --a: #0b69c7; --b: #b35900; --c: #1a7f37; --d: #9a3fb5; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #f0f3f6; --dim: #a5afba; --card: #1b222b; --edge: #47515c; }
  svg { --a: #6cb2ff; --b: #f0a35e; --c: #5fcf7b; --d: #dd9bf2; }
}
text { fill: var(--ink); text-anchor: middle; } .dim, .key { fill: var(--dim); }
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
    text = draw_rounds(FederationConfig.load(DEPLOY / "examples" / "federation.toml"))
    if PICTURE.exists() and PICTURE.read_text("utf-8") == text:
        return 0
    if check:
        print(f"{PICTURE.relative_to(DEPLOY.parent)} is stale: run python deploy/picture.py", file=sys.stderr)
        return 1
    PICTURE.write_text(text, "utf-8")
    print(f"{PICTURE.relative_to(DEPLOY.parent)} written")
    return 0


def draw_rounds(federation: FederationConfig) -> str:
    """The first rounds of a federation, side by side, as SVG."""
    rules = make_rules(federation, next(iter(federation.roster)), ROUND_KEY, without=frozenset(), stay=False)
    rounds = plan_of(rules, rounds=ROUNDS)["rounds"]
    names = list(federation.roster)
    width = PANEL * ROUNDS
    alternative = "; ".join(
        f"round {plan['round']}: "
        + ", ".join(f"{receiver} from {sources[0]}" for receiver, sources in plan["receives_from"].items())
        for plan in rounds
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img">',
        f"<title>Who receives whose model in {ROUNDS} rounds of four sites. {alternative}</title>",
        f"<style>{STYLE}</style>",
    ]
    for index, plan in enumerate(rounds):
        parts += [f'<g transform="translate({index * PANEL} 0)">', *_round(plan["round"], plan["receives_from"], names)]
        parts.append("</g>")
    return "\n".join([*parts, *_legend(width / 2), "</svg>\n"])


def _round(number: int, receives: Mapping[str, list[str]], names: Sequence[str]) -> Iterator[str]:
    yield f'<text class="round" x="{PANEL / 2}" y="22">Round {number}</text>'
    for receiver, sources in receives.items():
        yield from _route(names.index(sources[0]), names.index(receiver))
    for index, name in enumerate(names):
        yield from _site(index, name, stays=name not in receives)


def _legend(middle: float) -> Iterator[str]:
    """The meaning of the signs, in one line."""
    y = HEIGHT - 18
    yield f'<g transform="translate({middle - 330} {y})">'
    yield from _network(0, 0, -5)
    yield '<text class="key" x="38" y="0">its own network</text>'
    yield from _data(190, -14)
    yield '<text class="key" x="220" y="0">its data, which stays</text>'
    yield '<path class="route a" d="M390,-5 h26"/><polygon class="tip a" points="424,-5 414,-10 414,0"/>'
    yield '<text class="key" x="432" y="0">the model that a site sends this round</text></g>'


def _network(index: int, left: float, middle: float) -> Iterator[str]:
    """A site's network, one bar a layer."""
    for number, layer in enumerate(NETWORKS[index]):
        x, y = left + number * 8, middle - layer / 2
        yield f'<rect class="layer {COLOURS[index]}" x="{x:.1f}" y="{y:.1f}" width="5" height="{layer}" rx="1"/>'


def _data(left: float, top: float) -> Iterator[str]:
    yield f'<path class="data" d="M{left:.1f},{top:.1f} v18 a11,4 0 0 0 22,0 v-18 a11,4 0 0 0 -22,0 a11,4 0 0 0 22,0"/>'


def _centre(index: int) -> tuple[float, float]:
    """The centre of a site's card: the first is above the ring's centre, the others follow
    clockwise.
    """
    angle = math.pi / 2 * index
    return PANEL / 2 + RADIUS * 0.92 * math.sin(angle), TOP - RADIUS * math.cos(angle)


def _route(source: int, receiver: int) -> Iterator[str]:
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
    colour = COLOURS[source]
    yield f'<path class="route {colour}" d="M{sx:.1f},{sy:.1f} Q{cx:.1f},{cy:.1f} {ex:.1f},{ey:.1f}"/>'
    yield f'<polygon class="tip {colour}" points="{tip} {sides}"/>'


def _edge(centre: tuple[float, float], towards: tuple[float, float], *, gap: float) -> tuple[float, float]:
    """The point where a line from a card's centre leaves the card, moved by a gap."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    share = min(CARD[0] / 2 / abs(dx) if dx else math.inf, CARD[1] / 2 / abs(dy) if dy else math.inf)
    further = share + gap / math.hypot(dx, dy)
    return centre[0] + dx * further, centre[1] + dy * further


def _site(index: int, name: str, *, stays: bool) -> Iterator[str]:
    """A card with the site's name, its own network, and its data, which no arrow leaves."""
    (x, y), (wide, high) = _centre(index), CARD
    left, top = x - wide / 2, y - high / 2
    yield f'<rect class="card" x="{left:.1f}" y="{top:.1f}" width="{wide}" height="{high}" rx="8"/>'
    yield f'<text x="{x:.1f}" y="{top + 18:.1f}">{name}</text>'
    yield from _network(index, left + 12, top + 44)
    yield from _data(left + 70, top + 35)
    if stays:
        yield f'<text class="dim" x="{x:.1f}" y="{top + high + 16:.1f}">keeps its own</text>'


if __name__ == "__main__":
    sys.exit(main())
