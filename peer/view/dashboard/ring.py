"""The ring of sites with the routes of a round, as SVG whose colours the page's style decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peer.core.status import PeerState
from peer.documents.records import FederationOverview, OverviewRow, OwnState, Route
from peer.errors import one_line
from peer.web_page import escape

NAMED_MAX = 8
"""With more sites, the nodes have the numbers of the table's rows instead of names."""
NAME_LENGTH_MAX = 12
RADIUS, NODE, LABEL_GAP = 92.0, 15.0, 8.0
LETTER, LINE = 9.4, 16.0
"""Width of a letter and height of a line of a label, in the units of the picture."""
NOTE_LENGTH_MIN = 9
SPACING = 44.0
"""Between the centres of two neighbours that only have numbers."""
BEND = 0.16
"""How far a route bends aside, as a share of its length: two routes between the same sites do not meet."""
HEAD = 8.0
STATE_CLASSES: dict[OwnState | PeerState, str] = {
    "running": "well",
    "heard": "well",
    "finished": "over",
    "new": "unknown",
    "unknown": "unknown",
    "absent": "unknown",
    "silent": "lost",
    "down": "lost",
    "unresponsive": "lost",
    "unreadable": "lost",
}
STATE_WORDS: dict[OwnState | PeerState, str] = {
    "down": "not running",
    "unresponsive": "no answer",
    "unknown": "not heard yet",
    "new": "not begun",
}
"""What people read, where it is not the state itself."""


@dataclass(frozen=True, slots=True)
class Node:
    """A site's place in the picture."""

    row: OverviewRow
    number: int
    x: float
    y: float
    angle: float


def draw_ring(overview: FederationOverview) -> str:
    """The picture of a federation's round; a screen reader reads the routes from its title."""
    rows = overview["sites"]
    named = len(rows) <= NAMED_MAX
    radius = max(RADIUS, len(rows) * SPACING / math.tau) if len(rows) > 1 else 0.0
    letters = max((min(len(row["site"]), NAME_LENGTH_MAX) for row in rows), default=0) if named else 0
    label = max(letters, NOTE_LENGTH_MIN) * LETTER if named else 0.0
    half_width = radius + NODE + LABEL_GAP + label
    half_height = radius + NODE + LABEL_GAP + (2 * LINE if named else 0.0) + 4.0
    nodes = {node.row["site"]: node for node in _place(rows, radius)}
    routes = [route for route in overview["routes"] if {route["sender"], route["receiver"]} <= nodes.keys()]
    words = "; ".join(f"{route['sender']} to {route['receiver']}: {route['state']}" for route in routes)
    parts = [
        f'<svg class="ring" viewBox="{-half_width:.0f} {-half_height:.0f} {2 * half_width:.0f} {2 * half_height:.0f}" '
        f'width="{2 * half_width:.0f}" role="img">',
        f"<title>Routes of round {overview['round']}: {escape(words or 'none')}</title>",
        *(_route(route, nodes[route["sender"]], nodes[route["receiver"]]) for route in routes),
        *(part for node in nodes.values() for part in _node(node, named=named)),
        "</svg>",
    ]
    return "\n".join(parts)


def _place(rows: Sequence[OverviewRow], radius: float) -> Iterator[Node]:
    start = -math.pi if len(rows) == 2 else -math.pi / 2  # two sites stand side by side
    for index, row in enumerate(rows):
        angle = start + math.tau * index / len(rows)
        yield Node(row, index + 1, radius * math.cos(angle), radius * math.sin(angle), angle)


def _route(route: Route, sender: Node, receiver: Node) -> str:
    """An arrow with a bend to its right, so that there and back differ."""
    dx, dy = receiver.x - sender.x, receiver.y - sender.y
    length = math.hypot(dx, dy) or 1.0
    bend_x, bend_y = (sender.x + receiver.x) / 2 - dy * BEND, (sender.y + receiver.y) / 2 + dx * BEND
    gap = NODE + 5.0
    start_x, start_y = _towards(sender.x, sender.y, bend_x, bend_y, gap)
    tip_x, tip_y = _towards(receiver.x, receiver.y, bend_x, bend_y, gap)
    neck_x, neck_y = _towards(receiver.x, receiver.y, bend_x, bend_y, gap + HEAD)
    side_x, side_y = -(neck_y - tip_y) / HEAD * 4.0, (neck_x - tip_x) / HEAD * 4.0
    back = " back" if route["kind"] == "return" and length else ""
    words = f"{route['sender']} → {route['receiver']}: {route['kind']}, {route['state']}"
    return (
        f'<g class="route {route["state"]}{back}"><title>{escape(one_line(words))}</title>'
        f'<path d="M{start_x:.1f} {start_y:.1f}Q{bend_x:.1f} {bend_y:.1f} {neck_x:.1f} {neck_y:.1f}"/>'
        f'<path class="head" d="M{tip_x:.1f} {tip_y:.1f}L{neck_x + side_x:.1f} {neck_y + side_y:.1f}'
        f'L{neck_x - side_x:.1f} {neck_y - side_y:.1f}Z"/></g>'
    )


def _towards(x: float, y: float, to_x: float, to_y: float, distance: float) -> tuple[float, float]:
    length = math.hypot(to_x - x, to_y - y) or 1.0
    return x + (to_x - x) / length * distance, y + (to_y - y) / length * distance


def _node(node: Node, *, named: bool) -> Iterator[str]:
    row = node.row
    yield f'<g class="site {STATE_CLASSES[row["state"]]}"><title>{escape(one_line(_words(row)))}</title>'
    yield f'<circle cx="{node.x:.1f}" cy="{node.y:.1f}" r="{NODE}"/>'
    if named and row["progress"] is not None:
        yield _progress(node, min(max(row["progress"], 0.0), 1.0))
    inside = str(node.number) if not named else {"lost": "!", "unknown": "?"}.get(STATE_CLASSES[row["state"]], "")
    if inside:
        yield f'<text class="inside" x="{node.x:.1f}" y="{node.y + 5:.1f}">{inside}</text>'
    if named:
        yield from _label(node)
    yield "</g>"


def _progress(node: Node, share: float) -> str:
    """An arc round the node, clockwise from its top."""
    radius, turn = NODE - 4.0, math.tau * min(share, 0.999)
    end_x, end_y = node.x + radius * math.sin(turn), node.y - radius * math.cos(turn)
    large = int(turn > math.pi)
    return (
        f'<path class="progress" d="M{node.x:.1f} {node.y - radius:.1f}'
        f'A{radius} {radius} 0 {large} 1 {end_x:.1f} {end_y:.1f}"/>'
    )


def _label(node: Node) -> Iterator[str]:
    """Name and phase, away from the ring's centre."""
    across, distance = math.cos(node.angle), NODE + LABEL_GAP
    name = node.row["site"]
    short = name if len(name) <= NAME_LENGTH_MAX else f"{name[: NAME_LENGTH_MAX - 1]}…"
    if abs(across) > 0.2:
        anchor, x, y = ("start" if across > 0 else "end"), node.x + math.copysign(distance, across), node.y - 3.0
    else:
        below = math.sin(node.angle) > 0
        anchor, x, y = "middle", node.x, node.y + (distance + LINE - 4.0 if below else -distance - LINE)
    yield f'<text class="name {anchor}" x="{x:.1f}" y="{y:.1f}">{escape(one_line(short))}</text>'
    yield f'<text class="note {anchor}" x="{x:.1f}" y="{y + LINE:.1f}">{escape(one_line(phase_words(node.row)))}</text>'


def phase_words(row: OverviewRow) -> str:
    """What a site does, in one or two words."""
    if row["state"] in ("running", "heard"):
        share = f" {row['progress']:.0%}" if row["progress"] is not None else ""
        return f"{row['phase'] or row['state']}{share}"
    return STATE_WORDS.get(row["state"], row["state"])


def _words(row: OverviewRow) -> str:
    where = f", round {row['round']}" if row["round"] is not None else ""
    return f"{row['site']}: {phase_words(row)}{where}"
