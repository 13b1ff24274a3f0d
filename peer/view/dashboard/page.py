"""The page of a federation: the same for the dashboard and for ``status --html``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from peer.core.limits import CERTIFICATE_DAYS_MIN
from peer.core.metrics import metric_title
from peer.core.status import PeerWait
from peer.documents.records import FederationOverview, OverviewRow, Route, RouteState
from peer.quantities import duration
from peer.site.records.snapshot import SiteSnapshot
from peer.view.dashboard import chart
from peer.view.dashboard.collect import FederationSnapshot
from peer.view.dashboard.elements import Markup, clock, size, table, text, time_of_day
from peer.view.dashboard.ring import NAMED_MAX, STATE_CLASSES, STATE_WORDS, draw_ring, phase_words
from peer.web_page import content_policy, render_page

STYLE = Path(__file__).with_name("page.css")
SCRIPT = Path(__file__).with_name("refresh.js")
SHORT = 12
"""How many digits of a digest a page shows."""
ROUTE_WORDS: Mapping[RouteState, str] = {
    "arrived": "arrived",
    "moving": "under way",
    "waiting": "waited for",
    "missing": "did without",
    "planned": "planned",
}
SWATCH = (
    '<svg width="14" height="10" aria-hidden="true">'
    '<g class="line{0}"><circle class="swatch" cx="6" cy="5" r="4"/></g></svg>'
)
"""The colour of a line, for the key of the charts."""
STALE = "No answer: `mhfl-peer dashboard` has ended. This is what it showed last."


def write_page(federations: Sequence[FederationSnapshot], *, version: str, live: bool = False) -> str:
    """The whole page as HTML.

    Args:
        live: the page fetches itself again every few seconds.
    """
    names = ", ".join(snapshot.overview["federation"] for snapshot in federations)
    body = [line for snapshot in federations for line in _federation(snapshot)]
    return _frame(f"{names} – mhfl-peer", body, version=version, live=live)


def write_problem(problem: str, *, version: str) -> str:
    """The page while nothing can be read; it fetches itself again like the others."""
    line = f'<ul class="attention"><li class="urgent">{text(problem)}.</li></ul>'
    return _frame("mhfl-peer", [line], version=version, live=True)


def live_policy() -> str:
    """The Content-Security-Policy of a page that fetches itself again."""
    return content_policy(style=STYLE.read_text("utf-8"), script=SCRIPT.read_text("utf-8"))


def _frame(title: str, body: Sequence[str], *, version: str, live: bool) -> str:
    stale = f'<p id="stale" hidden>{text(STALE)}</p>\n' if live else ""
    whole = "\n".join([f"{stale}<main>", *body, f"</main>\n<footer>mhfl-peer {text(version)}</footer>"])
    script = SCRIPT.read_text("utf-8") if live else ""
    return render_page(title, whole, style=STYLE.read_text("utf-8"), script=script)


def _federation(snapshot: FederationSnapshot) -> Iterator[str]:
    overview = snapshot.overview
    yield "<section>"
    yield from _head(overview, snapshot.sites)
    yield from _attention(overview)
    yield '<div class="top">'
    heading = f"Round {overview['round']}" if overview["round"] else "Before round 1"
    yield f'<figure class="ringbox"><h2>{heading}</h2>'
    yield f"{draw_ring(overview)}{_route_key(overview)}</figure>"
    yield f"<div><h2>Sites</h2>{_sites(overview)}{_seen_by(overview, snapshot.sites)}"
    yield from _waits(overview)
    yield from _routes(overview)
    yield "</div></div>"
    yield from _room(overview)
    yield from _curves(overview, snapshot.sites)
    yield from _sent(snapshot.sites)
    yield from _refusals(overview)
    yield from _machine(snapshot.sites)
    yield from _stories(snapshot.sites)
    yield "</section>"


def _head(overview: FederationOverview, sites: Sequence[SiteSnapshot]) -> Iterator[str]:
    committed = max(snapshot["status"]["committed"] for snapshot in sites)
    left_s = [left for snapshot in sites if (left := snapshot["status"]["left_s"]) is not None]
    share = committed / max(overview["rounds"], 1)
    yield f"<h1>{text(overview['federation'])}<small>{text(overview['method'])}</small></h1>"
    facts = [
        f"<span>round <b>{overview['round']}</b> of {overview['rounds']}</span>",
        *([f"<span>about <b>{duration(max(left_s))}</b> left</span>"] if left_s and max(left_s) > 0 else []),
        f"<span>read {clock(overview['time'])}</span>",
        f'<span>settings <span class="digest">{text(overview["digest"][:SHORT])}</span></span>',
    ]
    yield f'<p class="facts">{"".join(facts)}</p>'
    yield (
        '<svg class="rounds" viewBox="0 0 1000 8" preserveAspectRatio="none" role="img">'
        f"<title>{committed} of {overview['rounds']} rounds are over</title>"
        f'<rect width="{1000 * share:.0f}" height="8"/></svg>'
    )


def _attention(overview: FederationOverview) -> Iterator[str]:
    yield '<ul class="attention">'
    if not overview["attention"]:
        yield '<li class="good">Nothing needs attention.</li>'
    for item in overview["attention"]:
        kind = ' class="urgent"' if item["urgent"] else ""
        yield f"<li{kind}><b>{text(item['site'])}:</b>{text(item['text'])}.</li>"
    yield "</ul>"


def _route_key(overview: FederationOverview) -> str:
    states = sorted({route["state"] for route in overview["routes"]}, key=list(ROUTE_WORDS).index)
    if not states:
        when = "In this round" if overview["round"] else "Before round 1"
        return f'<p class="note">{when}, no site sends to another.</p>'
    sample = '<svg width="30" height="10" aria-hidden="true"><g class="route {0}"><path d="M1 5H29"/></g></svg>'
    return (
        f'<p class="key">{"".join(f"<span>{sample.format(state)}{ROUTE_WORDS[state]}</span>" for state in states)}</p>'
    )


def _sites(overview: FederationOverview) -> str:
    numbered = len(overview["sites"]) > NAMED_MAX
    columns = ["site", "state", "round", "does", "waits for", "certificate", "program"]
    rows = []
    for number, row in enumerate(overview["sites"], 1):
        name = f"{number} {row['site']}" if numbered else row["site"]
        waits = ", ".join(wait["site"] for wait in row["waiting_for"]) if row["seen_by"] == row["site"] else None
        does = phase_words(row) if row["state"] in ("running", "heard") else None
        software = (row["software"] or "").removeprefix("mhfl-peer ") or None
        rows.append((name, _state(row), row["round"], does, waits, _days(row["certificate_days"]), software))
    return table(columns, rows, numbers=("round",))


def _state(row: OverviewRow) -> Markup:
    word = "running" if row["state"] == "heard" else STATE_WORDS.get(row["state"], row["state"])
    ago = f" for {duration(row['last_seen_s'])}" if row["state"] == "silent" and row["last_seen_s"] is not None else ""
    return Markup(f'<span class="state {STATE_CLASSES[row["state"]]}">{text(word + ago)}</span>')


def _days(days: int | None) -> Markup | None:
    if days is None:
        return None
    kind = "lost" if days < 0 else "late" if days < CERTIFICATE_DAYS_MIN else "nowrap"
    return Markup(f'<span class="{kind}">{f"{days} days" if days >= 0 else "expired"}</span>')


def _seen_by(overview: FederationOverview, sites: Sequence[SiteSnapshot]) -> str:
    others = sorted({row["seen_by"] for row in overview["sites"] if row["seen_by"] != row["site"]})
    if not others:
        return ""
    here = ", ".join(text(snapshot["status"]["site"]) for snapshot in sites)
    return f'<p class="note">On this machine: {here}. The other rows are what {text(", ".join(others))} heard last.</p>'


def _routes(overview: FederationOverview) -> Iterator[str]:
    if not overview["routes"]:
        return
    yield f"<h2>Transfers of round {overview['round']}</h2>"
    ordered = sorted(overview["routes"], key=lambda route: (route["receiver"], route["sender"], route["kind"]))
    rows = [
        (f"{route['sender']} → {route['receiver']}", route["kind"], _bytes(route), _route_state(route))
        for route in ordered
    ]
    yield table(("way", "what", "size", "state"), rows, numbers=("size",))


def _bytes(route: Route) -> str | None:
    return None if route["bytes"] is None else size(route["bytes"])


def _route_state(route: Route) -> str:
    share = f", {route['share']:.0%}" if route["share"] is not None else ""
    reason = f": {route['sender']} {route['reason']}" if route["reason"] else ""
    return f"{ROUTE_WORDS[route['state']]}{share}{reason}"


def _waits(overview: FederationOverview) -> Iterator[str]:
    rows = [
        (row["site"], wait["site"], wait["artifact"], duration(wait["since_s"]), _deadline(wait))
        for row in overview["sites"]
        for wait in row["waiting_for"]
    ]
    if rows:
        yield "<h2>Who waits for whom</h2>"
        yield table(("site", "waits for", "what", "for", "at most"), rows)


def _deadline(wait: PeerWait) -> str:
    return "until it answers" if wait["deadline_s"] is None else f"{duration(max(0.0, wait['deadline_s']))} more"


def _room(overview: FederationOverview) -> Iterator[str]:
    """How far each site has come from training alone to all data pooled, where its operator said what both are."""
    known = [(row["site"], row["room"]) for row in overview["sites"] if row["room"] is not None]
    if not known:
        return
    yield "<h2>The share of the room</h2>"
    rows = []
    for site, room in known:
        values = (f"{room[key]:.3f}" for key in ("alone", "value", "pooled"))
        taken = "hardly any room" if room["share"] is None else Markup(_bar(room["share"]))
        rows.append((site, metric_title(room["metric"]), *values, taken))
    columns = ("site", "on its own test data", "alone", "now", "pooled", "of the room")
    yield table(columns, rows, numbers=("alone", "now", "pooled"))
    yield (
        '<p class="note">Training alone takes none of the room, and training on the data of all sites all of it. What '
        "both reach is what <code>[reference]</code> in <code>site.toml</code> says.</p>"
    )


def _bar(share: float) -> str:
    width = 100 * min(1.0, max(0.0, share))
    return (
        f'<span class="share"><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{width:.0f}" height="8"/></svg>{share:.0%}</span>'
    )


def _curves(overview: FederationOverview, sites: Sequence[SiteSnapshot]) -> Iterator[str]:
    names = [snapshot["status"]["site"] for snapshot in sites]
    styles = {name: index for index, name in enumerate(names)}
    first, others = chart.choose_tags([curve for snapshot in sites for curve in snapshot["curves"]])
    if not first and not others:
        return
    lines: dict[str, dict[str, chart.Points]] = {}
    for name, snapshot in zip(names, sites, strict=True):
        for curve in snapshot["curves"]:
            lines.setdefault(curve["tag"], {})[name] = curve["points"]
    last = max((points[-1][0] for of_tag in lines.values() for points in of_tag.values() if points), default=1)
    yield "<h2>Learning curves</h2>"
    key = "".join(f"<span>{SWATCH.format(styles[name] % chart.COLOURS)}{text(name)}</span>" for name in names)
    yield f'<p class="key">{key}</p><div class="charts">'
    yield from (chart.draw_chart(tag, lines[tag], styles, rounds=last) for tag in first)
    yield "</div>"
    if others:
        yield f'<details id="curves-{text(overview["federation"])}"><summary>{len(others)} more curves</summary>'
        yield '<div class="charts">'
        yield from (chart.draw_chart(tag, lines[tag], styles, rounds=last) for tag in others)
        yield "</div></details>"


def _sent(sites: Sequence[SiteSnapshot]) -> Iterator[str]:
    yield "<h2>What left, and to whom</h2>"
    if not any(snapshot["sent"] for snapshot in sites):
        yield "<p>Nothing.</p>"
        return
    yield _sent_by_receiver(sites) if len(sites) > 1 else _sent_in_detail(sites[0])
    yield '<p class="note">From the egress ledger, which <code>mhfl-peer egress verify</code> checks.</p>'


def _sent_by_receiver(sites: Sequence[SiteSnapshot]) -> str:
    """A row a site, a column a receiver."""
    receivers = sorted({total["receiver"] for snapshot in sites for total in snapshot["sent"]})
    rows: list[list[object]] = []
    for snapshot in sites:
        cells: list[object] = [f"from {snapshot['status']['site']}"]
        for receiver in receivers:
            totals = [total for total in snapshot["sent"] if total["receiver"] == receiver]
            transfers, count = sum(total["transfers"] for total in totals), sum(total["bytes"] for total in totals)
            cells.append(f"{size(count)} in {transfers}" if totals else None)
        rows.append(cells)
    return table(["", *(f"to {receiver}" for receiver in receivers)], rows)


def _sent_in_detail(snapshot: SiteSnapshot) -> str:
    rows = [
        (
            total["receiver"],
            total["kind"] if total["purpose"] == "train" else f"{total['kind']} ({total['purpose']})",
            total["transfers"],
            size(total["bytes"]),
            clock(total["last"]),
        )
        for total in snapshot["sent"]
    ]
    return table(("to", "what", "transfers", "bytes", "last"), rows, numbers=("transfers", "bytes"))


def _refusals(overview: FederationOverview) -> Iterator[str]:
    if not overview["refusals"]:
        return
    yield "<h2>Who refuses whom</h2>"
    rows = []
    for group in overview["refusals"]:
        first, last = group["first_round"], group["last_round"]
        rounds = str(first) if first == last else f"{first} to {last}"
        rows.append((group["by"], group["of"], group["reason"], group["times"], rounds))
    yield table(("site", "refused", "because", "times", "in rounds"), rows, numbers=("times",))


def _machine(sites: Sequence[SiteSnapshot]) -> Iterator[str]:
    yield "<h2>On this machine</h2>"
    rows = []
    for snapshot in sites:
        status = snapshot["status"]
        samples = ", ".join(f"{count} {split}" for split, count in status["samples"].items() if count)
        loss = ", ".join(f"{name} {value:.4g}" for name, value in status["training"].get("loss", {}).items())
        folder, free = size(snapshot["folder_bytes"]), size(snapshot["free_bytes"])
        rows.append((status["site"], status["listen"] or None, samples, loss, folder, free))
    yield table(("site", "listens at", "samples", "loss now", "its folder", "free on its disk"), rows)


def _stories(sites: Sequence[SiteSnapshot]) -> Iterator[str]:
    if not any(snapshot["stories"] for snapshot in sites):
        return
    yield "<h2>The last rounds</h2>"
    for snapshot in sites:
        status, stories = snapshot["status"], snapshot["stories"]
        if stories:
            opened = " open" if len(sites) == 1 else ""
            yield f'<details id="story-{text(status["federation"])}-{text(status["site"])}"{opened}>'
            yield f"<summary>{text(status['site'])}</summary>"
            for round_story in stories:
                yield f'<h3>Round {round_story["round"]}, {text(round_story["state"])}</h3><ol class="story">'
                for time_s, sentence in round_story["sentences"]:
                    yield f"<li><time>{time_of_day(time_s)}</time><span>{text(sentence)}</span></li>"
                yield "</ol>"
            yield "</details>"
