"""The page of a federation: the same for the dashboard and for ``status --out``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peer.core.limits import CERTIFICATE_DAYS_MIN
from peer.core.loss_terms import loss_title
from peer.core.metrics import METRICS, SPLITS, metric_title
from peer.core.status_document import PeerWait
from peer.documents.records import FederationOverview, OverviewRow, Route, RouteState
from peer.quantities import duration
from peer.site.records.snapshot import SiteSnapshot, read_quality
from peer.view.dashboard import chart
from peer.view.dashboard.collect import FederationSnapshot
from peer.view.dashboard.ring import NAMED_MAX, STATE_CLASSES, STATE_WORDS, arrange_ring, phase_words
from peer.web_page import Badge, Bar, PageTable, clock, content_policy, render_page, size

STYLES = ("dashboard.css",)
SCRIPT = "refresh.js"
ROUTE_WORDS: Mapping[RouteState, str] = {
    "arrived": "arrived",
    "moving": "under way",
    "waiting": "waited for",
    "missing": "did without",
    "planned": "planned",
}


def write_page(federations: Sequence[FederationSnapshot], *, version: str, live: bool = False) -> str:
    """Return the whole page as HTML.

    Args:
        live: the page fetches itself again every few seconds.
    """
    names = ", ".join(snapshot.overview["federation"] for snapshot in federations)
    return _render(f"{names} – mhfl-peer", list(map(_content, federations)), version=version, live=live)


def write_problem(problem: str, *, version: str) -> str:
    """Return the page while nothing can be read; it fetches itself again like the others."""
    return _render("mhfl-peer", [], problem=problem, version=version, live=True)


def live_policy() -> str:
    """Return the Content-Security-Policy of a page that fetches itself again."""
    return content_policy(styles=STYLES, script=SCRIPT)


def _render(
    title: str, federations: Sequence[Mapping[str, object]], *, version: str, live: bool, problem: str = ""
) -> str:
    return render_page(
        "dashboard.html.j2",
        title=title,
        styles=STYLES,
        script=SCRIPT if live else "",
        federations=federations,
        problem=problem,
        version=version,
    )


def _content(snapshot: FederationSnapshot) -> dict[str, object]:
    """Return the content of one federation's section."""
    overview, sites = snapshot.overview, snapshot.sites
    states = {route["state"] for route in overview["routes"]}
    receivers = sorted({total["receiver"] for site in sites for total in site["sent"]})
    return {
        "overview": overview,
        "committed": max(site["status"]["committed"] for site in sites),
        "figures": _figures(overview, sites),
        "ring": arrange_ring(overview),
        "route_states": {state: words for state, words in ROUTE_WORDS.items() if state in states},
        "sites": _sites(overview),
        "here": [site["status"]["site"] for site in sites],
        "seen_by": sorted({row["seen_by"] for row in overview["sites"] if row["seen_by"] != row["site"]}),
        "waits": _waits(overview),
        "routes": _routes(overview),
        "room": _room(overview),
        "curves": _curves(sites),
        "receivers": [f"to {receiver}" for receiver in receivers] if len(sites) > 1 else [],
        "sent": _sent_by_receiver(sites, receivers) if len(sites) > 1 else _sent_in_detail(sites[0]),
        "losses": [row["losses"] for row in overview["sites"] if row["losses"]],
        "refusals": _refusals(overview, old=False),
        "old_refusals": _refusals(overview, old=True),
        "machine": _machine(sites),
        "stories": {site["status"]["site"]: site["stories"] for site in sites if site["stories"]},
    }


def _figures(overview: FederationOverview, sites: Sequence[SiteSnapshot]) -> list[tuple[str, str, str]]:
    """Return the four figures that stand on top: name, value and note of each."""
    committed = min(site["status"]["committed"] for site in sites)
    up = sum(row["state"] in ("running", "heard", "finished") for row in overview["sites"])
    totals = [total for site in sites for total in site["sent"]]
    sent, transfers = (sum(total[key] for total in totals) for key in ("bytes", "transfers"))
    quality = read_quality(sites)
    return [
        ("rounds over", f"{committed} of {overview['rounds']}", ""),
        ("sites up or finished", f"{up} of {len(overview['sites'])}", ""),
        ("quality", "–", "not measured yet")
        if quality is None
        else (METRICS[quality.metric].title, quality.mean(quality.last), f"on {SPLITS[quality.split]}"),
        ("left this machine", size(sent), f"in {transfers} transfers"),
    ]


def _sites(overview: FederationOverview) -> PageTable:
    numbered = len(overview["sites"]) > NAMED_MAX
    columns = ["site", "state", "round", "does", "waits for", "certificate", "program"]
    rows = []
    for number, row in enumerate(overview["sites"], 1):
        name = f"{number} {row['site']}" if numbered else row["site"]
        waits = ", ".join(wait["site"] for wait in row["waiting_for"]) if row["seen_by"] == row["site"] else None
        does = phase_words(row) if row["state"] in ("running", "heard") else None
        software = (row["software"] or "").removeprefix("mhfl-peer ")
        rows.append((name, _state(row), row["round"], does, waits, _days(row["certificate_days"]), software))
    return PageTable(columns, rows, numbers=["round"])


def _state(row: OverviewRow) -> Badge:
    word = "running" if row["state"] == "heard" else STATE_WORDS.get(row["state"], row["state"])
    ago = f" for {duration(row['last_seen_s'])}" if row["state"] == "silent" and row["last_seen_s"] is not None else ""
    return Badge(word + ago, f"state {STATE_CLASSES[row['state']]}")


def _days(days: int | None) -> Badge | None:
    if days is None:
        return None
    kind = "lost" if days < 0 else "late" if days < CERTIFICATE_DAYS_MIN else "nowrap"
    return Badge(f"{days} days" if days >= 0 else "expired", kind)


def _routes(overview: FederationOverview) -> PageTable:
    """Return a row a sender with a cell a receiver, or, of many sites, a row a route."""
    routes = sorted(overview["routes"], key=lambda route: (route["receiver"], route["sender"], route["kind"]))
    several = len({route["kind"] for route in routes}) > 1
    cells: dict[tuple[str, str], list[str]] = {}
    for route in routes:
        cells.setdefault((route["sender"], route["receiver"]), []).append(_route_words(route, with_kind=several))
    words = {way: "; ".join(of_kinds) for way, of_kinds in cells.items()}
    if len(overview["sites"]) > NAMED_MAX:
        return PageTable(("way", "transfer"), [(f"{way[0]} → {way[1]}", text) for way, text in words.items()])
    senders, receivers = (sorted({way[end] for way in words}) for end in (0, 1))
    rows = [(f"from {sender}", *(words.get((sender, receiver)) for receiver in receivers)) for sender in senders]
    return PageTable(("", *(f"to {receiver}" for receiver in receivers)), rows)


def _route_words(route: Route, *, with_kind: bool) -> str:
    kind = f"{route['kind']} " if with_kind else ""
    return f"{kind}{_route_state(route)}" + ("" if route["bytes"] is None else f", {size(route['bytes'])}")


def _route_state(route: Route) -> str:
    share = f", {route['share']:.0%}" if route["share"] is not None else ""
    reason = f": {route['sender']} {route['reason']}" if route["reason"] else ""
    return f"{ROUTE_WORDS[route['state']]}{share}{reason}"


def _waits(overview: FederationOverview) -> PageTable:
    rows = [
        (row["site"], wait["site"], wait["artifact"], duration(wait["since_s"]), _deadline(wait))
        for row in overview["sites"]
        for wait in row["waiting_for"]
    ]
    return PageTable(("site", "waits for", "what", "for", "at most"), rows)


def _deadline(wait: PeerWait) -> str:
    return "until it answers" if wait["deadline_s"] is None else f"{duration(max(0.0, wait['deadline_s']))} more"


def _room(overview: FederationOverview) -> PageTable:
    """Return each site's share of the way from training alone to all data pooled, where its operator set both."""
    rows = [
        (
            row["site"],
            metric_title(room["metric"]),
            *(f"{room[key]:.3f}" for key in ("alone", "value", "pooled")),
            _share(room["share"]),
        )
        for row in overview["sites"]
        if (room := row["room"]) is not None
    ]
    columns = ("site", "on its own test data", "alone", "now", "pooled", "of the room")
    return PageTable(columns, rows, numbers=["alone", "now", "pooled"])


def _share(share: float | None) -> Bar | str:
    if share is None:
        return "hardly any room"
    return Bar(share) if share >= 0 else "below training alone"


def _curves(sites: Sequence[SiteSnapshot]) -> dict[str, object]:
    """Return the charts, those that everybody looks at first, and the colour of each site."""
    styles = {site["status"]["site"]: index for index, site in enumerate(sites)}
    lines: dict[str, dict[str, chart.Points]] = {}
    for site in sites:
        for curve in site["curves"]:
            lines.setdefault(curve["tag"], {})[site["status"]["site"]] = curve["points"]
    last = max((points[-1][0] for of_tag in lines.values() for points in of_tag.values() if points), default=1)
    first, others = (
        [
            chart.lay_out_chart(tag, lines, styles, rounds=last, samples=_samples(sites, tag.rpartition("/")[0]))
            for tag in tags
        ]
        for tags in chart.choose_tags(lines)
    )
    return {
        "key": [(style % chart.COLOURS, name) for name, style in styles.items()],
        "first": first,
        "others": others,
    }


def _samples(sites: Sequence[SiteSnapshot], split: str) -> list[int]:
    """Return how many samples each site of this machine has in a split of its own."""
    return [site["status"]["samples"][split] for site in sites if split in site["status"]["samples"]]


def _sent_by_receiver(sites: Sequence[SiteSnapshot], receivers: Sequence[str]) -> dict[str, list[str | None]]:
    """Return a row a site, with a cell a receiver."""
    rows = {}
    for site in sites:
        cells = []
        for receiver in receivers:
            totals = [total for total in site["sent"] if total["receiver"] == receiver]
            transfers, count = sum(total["transfers"] for total in totals), sum(total["bytes"] for total in totals)
            cells.append(f"{size(count)} in {transfers}" if totals else None)
        rows[f"from {site['status']['site']}"] = cells
    return rows if receivers else {}


def _sent_in_detail(site: SiteSnapshot) -> PageTable | None:
    rows = [
        (
            total["receiver"],
            total["kind"] if total["purpose"] == "train" else f"{total['kind']} ({total['purpose']})",
            total["transfers"],
            size(total["bytes"]),
            clock(total["last"]),
        )
        for total in site["sent"]
    ]
    columns = ("to", "what", "transfers", "bytes", "last")
    return PageTable(columns, rows, numbers=["transfers", "bytes"]) if rows else None


def _refusals(overview: FederationOverview, *, old: bool) -> PageTable:
    rows = []
    for group in (each for each in overview["refusals"] if each["old"] == old):
        first, last = group["first_round"], group["last_round"]
        rounds = str(first) if first == last else f"{first} to {last}"
        what = (group["of"], "declined to", group["by"]) if group["declined"] else (group["by"], "refused", group["of"])
        rows.append((*what, group["reason"], group["times"], rounds))
    return PageTable(("site", "", "site", "because", "times", "in rounds"), rows, numbers=["times"])


def _machine(sites: Sequence[SiteSnapshot]) -> PageTable:
    rows = []
    for snapshot in sites:
        status = snapshot["status"]
        samples = ", ".join(f"{count} {split}" for split, count in status["samples"].items() if count)
        loss = ", ".join(
            f"{loss_title(term)} {value:.4g}" for term, value in status["training"].get("loss", {}).items()
        )
        folder, free = size(snapshot["folder_bytes"]), size(snapshot["free_bytes"])
        rows.append((status["site"], status["listen"], samples, loss, folder, free))
    return PageTable(("site", "listens at", "samples", "loss now", "its folder", "free on its disk"), rows)
