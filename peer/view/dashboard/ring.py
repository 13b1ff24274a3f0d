"""The ring of sites with the routes of a round, as ``charts.html.j2`` draws it."""

from __future__ import annotations

import math

from peer.core.status_document import PeerState
from peer.documents.records import FederationOverview, OverviewRow, OwnState, Route

NAMED_MAX = 8
"""With more sites, the nodes have the numbers of the table's rows instead of names."""
NAME_LENGTH_MAX = 14
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
Place = tuple[float, float]


def arrange_ring(overview: FederationOverview) -> dict[str, object]:
    """Arrange a federation's sites and routes in a ring, as the macro ``ring`` of ``charts.html.j2`` draws it."""
    rows = overview["sites"]
    named = len(rows) <= NAMED_MAX
    radius = max(RADIUS, len(rows) * SPACING / math.tau) if len(rows) > 1 else 0.0
    letters = max((min(len(row["site"]), NAME_LENGTH_MAX) for row in rows), default=0) if named else 0
    label = max(letters, NOTE_LENGTH_MIN) * LETTER if named else 0.0
    half_width = radius + NODE + LABEL_GAP + label
    half_height = radius + NODE + LABEL_GAP + (2 * LINE if named else 0.0) + 4.0
    start = -math.pi if len(rows) == 2 else -math.pi / 2  # two sites stand side by side
    angles = [start + math.tau * index / len(rows) for index in range(len(rows))]
    places = {
        row["site"]: (radius * math.cos(angle), radius * math.sin(angle))
        for row, angle in zip(rows, angles, strict=True)
    }
    routes = [route for route in overview["routes"] if {route["sender"], route["receiver"]} <= places.keys()]
    words = "; ".join(f"{route['sender']} to {route['receiver']}: {route['state']}" for route in routes)
    return {
        "title": f"Routes of round {overview['round']}: {words or 'none'}",
        "view_box": (-half_width, -half_height, 2 * half_width, 2 * half_height),
        "routes": [_route(route, places[route["sender"]], places[route["receiver"]]) for route in routes],
        "nodes": [
            _node(row, *places[row["site"]], angle, number=None if named else number)
            for number, (row, angle) in enumerate(zip(rows, angles, strict=True), 1)
        ],
    }


def _route(route: Route, sender: Place, receiver: Place) -> dict[str, object]:
    """Return an arrow with a bend to its right, so that there and back differ."""
    dx, dy = receiver[0] - sender[0], receiver[1] - sender[1]
    bend_x, bend_y = (sender[0] + receiver[0]) / 2 - dy * BEND, (sender[1] + receiver[1]) / 2 + dx * BEND
    gap = NODE + 5.0
    start_x, start_y = _towards(*sender, bend_x, bend_y, gap)
    tip_x, tip_y = _towards(*receiver, bend_x, bend_y, gap)
    neck_x, neck_y = _towards(*receiver, bend_x, bend_y, gap + HEAD)
    side_x, side_y = -(neck_y - tip_y) / HEAD * 4.0, (neck_x - tip_x) / HEAD * 4.0
    return {
        "state": route["state"],
        "back": route["kind"] == "return",
        "words": f"{route['sender']} → {route['receiver']}: {route['kind']}, {route['state']}",
        "line": f"M{start_x:.1f} {start_y:.1f}Q{bend_x:.1f} {bend_y:.1f} {neck_x:.1f} {neck_y:.1f}",
        "head": f"M{tip_x:.1f} {tip_y:.1f}L{neck_x + side_x:.1f} {neck_y + side_y:.1f}"
        f"L{neck_x - side_x:.1f} {neck_y - side_y:.1f}Z",
    }


def _towards(x: float, y: float, to_x: float, to_y: float, distance: float) -> tuple[float, float]:
    length = math.hypot(to_x - x, to_y - y) or 1.0
    return x + (to_x - x) / length * distance, y + (to_y - y) / length * distance


def _node(row: OverviewRow, x: float, y: float, angle: float, *, number: int | None) -> dict[str, object]:
    """Return a site, with its number where the picture has no names."""
    kind = STATE_CLASSES[row["state"]]
    progress = None if number else row["progress"]
    return {
        "x": x,
        "y": y,
        "radius": NODE,
        "kind": kind,
        "words": _words(row),
        "sign": str(number) if number else {"lost": "!", "unknown": "?"}.get(kind, ""),
        "arc": "" if progress is None else _arc(x, y, min(max(progress, 0.0), 1.0)),
        "label": None if number else _label(row, x, y, angle),
    }


def _arc(x: float, y: float, share: float) -> str:
    """Return an arc round a node, clockwise from its top."""
    radius, turn = NODE - 4.0, math.tau * min(share, 0.999)
    end_x, end_y = x + radius * math.sin(turn), y - radius * math.cos(turn)
    return f"M{x:.1f} {y - radius:.1f}A{radius} {radius} 0 {int(turn > math.pi)} 1 {end_x:.1f} {end_y:.1f}"


def _label(row: OverviewRow, x: float, y: float, angle: float) -> dict[str, object]:
    """Name and phase, away from the ring's centre."""
    across, distance = math.cos(angle), NODE + LABEL_GAP
    name = row["site"]
    short = name if len(name) <= NAME_LENGTH_MAX else f"{name[: NAME_LENGTH_MAX - 1]}…"
    if abs(across) > 0.2:
        anchor, x, y = ("start" if across > 0 else "end"), x + math.copysign(distance, across), y - 3.0
    else:
        below = math.sin(angle) > 0
        anchor, y = "middle", y + (distance + LINE - 4.0 if below else -distance - LINE)
    return {"anchor": anchor, "x": x, "y": y, "note_y": y + LINE, "name": short, "note": phase_words(row)}


def phase_words(row: OverviewRow) -> str:
    """Return a site's phase in one or two words."""
    if row["state"] in ("running", "heard"):
        share = f" {row['progress']:.0%}" if row["progress"] is not None else ""
        return f"{row['phase'] or row['state']}{share}"
    return STATE_WORDS.get(row["state"], row["state"])


def _words(row: OverviewRow) -> str:
    where = f", round {row['round']}" if row["round"] is not None else ""
    return f"{row['site']}: {phase_words(row)}{where}"
