"""Tables and progress bars for the documents of ``peer.cli.watch``."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peer.cli import output
from peer.core.leak import describe
from peer.core.limits import CERTIFICATE_DAYS_MIN
from peer.core.loss_terms import loss_title
from peer.core.metrics import metric_title
from peer.core.privacy import describe_contradiction, describe_guarantee
from peer.core.status_document import describe_losses, is_old_refusal
from peer.errors import one_line
from peer.quantities import duration
from peer.quantities import size as size

SHORT = 12
"""How many digits of a digest a table shows."""
EMPTY: tuple[object, ...] = (None, "", [], {})
DIGEST = re.compile("[0-9a-f]{64}")
NAME_WIDTH = 24
BAR_WIDTH = 20
NOT_SHOWN = ("_last", "_steps", "_undefined", "samples")
"""Suffixes of metrics that the table omits; ``rounds --json`` has them."""
PROBLEMS_SHOWN_MAX = 5
"""`status` omits further unreachable peers; `peers` shows all of them."""
STATE_STYLE = {"heard": "green", "silent": "red", "unknown": "yellow", "absent": "dim"}


def status(document: Mapping[str, Any]) -> output.RenderableType:
    """Render a site's status: progress bars, losses, awaited artifacts, peers, refusals."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(
        (document["site"], "bold"),
        f" in {document['federation']} {document['digest'][:SHORT]}  {document['method']}  ",
        f"generation {document['generation']}",
    )
    parts: list[output.RenderableType] = [head, _progress(document)]
    if document["daemon"] != "running":
        parts.append(Text(_not_running(document), style="yellow"))
    if document["training"]:
        parts.append(_training(document["training"]))
    parts.extend(_transfer(transfer) for transfer in document.get("transfers", ()))
    parts.extend(_waiting(wait) for wait in document["waiting_for"])
    if document["failure"]:
        parts.append(Text(f"Failed: {one_line(document['failure'])}", style="red"))
    if document.get("held"):
        parts.append(Text(f"Held: {one_line(document['held'])}.", style="yellow"))
    if document.get("departed"):
        parts.append(Text(f"Departed: {one_line(document['departed'])}.", style="red"))
    if document.get("datalist"):
        parts.append(Text(f"Data: {document['datalist']}; see `mhfl-peer withdraw`.", style="yellow"))
    if document.get("last_round"):
        parts.append(_contributors(document["last_round"], own=document["site"]))
    if document.get("weights"):
        parts.append(Text(f"Pretrained weights: {one_line(document['weights'])}."))
    if document.get("best_round"):
        parts.append(_best_round(document["best_round"]))
    if leak := document.get("leak"):
        style = "red" if leak["answer"] == "above" else ""
        parts.append(Text(f"Newest {leak['kind']}, {describe(leak)}.", style=style))
    if spent := document.get("spent"):
        parts.append(Text(f"Privacy: {describe_guarantee(spent)}.", style="yellow" if spent["exceeded"] else ""))
        if leak and (contradiction := describe_contradiction(leak, spent)):
            parts.append(Text(f"Of the newest {leak['kind']}, {contradiction}.", style="red"))
    parts.append(peers(document["peers"], brief=True))
    parts.extend(_relay(relay) for relay in document.get("relays", ()))
    parts.extend(Text(line, style="red") for line in _refusals(document))
    if losses := describe_losses(document["site"], document.get("contributions", {}), round=document["round"]):
        parts.append(Text(f"By refusals, {losses}.", style="yellow"))
    days = document.get("certificate_days")
    if days is not None and days < 0:
        parts.append(Text("The certificate has expired: this site can call no peer until you renew it.", style="red"))
    elif days is not None:
        parts.append(
            Text(
                f"The certificate is valid for {days} more days.", style="red" if days < CERTIFICATE_DAYS_MIN else "dim"
            )
        )
    return Group(*parts)


def _relay(relay: Mapping[str, Any]) -> output.RenderableType:
    from rich.text import Text

    if relay["problem"]:
        return Text(f"Relay {relay['name']}: nothing is parked there: {one_line(relay['problem'])}", style="red")
    return Text(
        f"Relay {relay['name']}: {relay['parked']} connections parked, {relay['carrying']} in use.", style="dim"
    )


def _progress(document: Mapping[str, Any]) -> output.RenderableType:
    done, total = document["committed"], document["rounds"]
    left_s = document.get("left_s")
    left = f", about {duration(left_s)} left" if left_s else ""
    return progress_line(f"round {document['round']}/{total}", done, total, f"{document['phase']}{left}")


def ended(document: Mapping[str, Any], newest_row_s: float | None) -> str:
    """Say how a site whose daemon does not run knows its peers."""
    done = f"round {document['committed']} of {document['rounds']} was its last"
    until = "" if newest_row_s is None else f" Its newest row is of {clock(newest_row_s)}, and {done}."
    state = f"{_not_running(document)}{until}"
    if all(peer["last_seen_s"] is None for peer in document["peers"].values()):
        return f"{state} No artifact of a peer has arrived."
    return f"{state} Round and last seen are of the newest artifact of each peer that arrived; `rounds` lists all."


def _not_running(document: Mapping[str, Any]) -> str:
    journal = "nothing was begun yet" if document["phase"] == "new" else "this is what the journal says"
    if document["daemon"] == "down":
        return f"The daemon is down: {journal}."
    return (
        f"Process {document['pid']} holds this site and does not answer: it starts, ends, is busy or is stopped; "
        f"{journal}."
    )


def _refusals(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for the recent refusals of one site for one reason, by the newest, and one for all old ones."""
    rounds_of: dict[tuple[str, str, str], list[int]] = {}
    refusals = document["refusals"]
    recent = [refusal for refusal in refusals if not is_old_refusal(refusal["round"], document)]
    if old := len(refusals) - len(recent):
        last = max(refusal["round"] for refusal in refusals if refusal not in recent)
        yield f"Refused or declined up to round {last}: {old} {'time' if old == 1 else 'times'}; see `mhfl-peer events`"
    for refusal in recent:
        key = ("Declined" if refusal.get("declined") else "Refused", refusal["site"], one_line(refusal["reason"]))
        rounds_of[key] = [*rounds_of.pop(key, []), refusal["round"]]
    for (what, site, reason), numbers in rounds_of.items():
        first, last = min(numbers), max(numbers)
        when = f"round {last}" if first == last else f"rounds {first} to {last}"
        times = f", {len(numbers)} times" if len(numbers) > 1 else ""
        by = "by " if what == "Declined" else ""
        yield f"{what} in {when}{times}: {by}{site}: {reason}"


def _contributors(last: Mapping[str, Any], *, own: str) -> output.RenderableType:
    """Render the contributors of the newest committed round, and the missing sites."""
    from rich.text import Text

    present = ", ".join(site for site in last["contributors"] if site not in (own, *last["missing"]))
    planned = not present and not last["missing"]
    text = Text(f"Round {last['round']} was trained ")
    text.append(f"with {present}" if present else "alone, as planned" if planned else "alone")
    for site, reason in last["missing"].items():
        stale = f"with an older artifact of {site}" if site in last["contributors"] else f"without {site}"
        text.append(f", {stale} ({one_line(reason)})", style="yellow")
    for site, reason in last.get("missing_returns", {}).items():
        text.append(f", without {site}'s copy of this model ({one_line(reason)})", style="yellow")
    return text.append(".")


def _best_round(best: Mapping[str, Any]) -> output.RenderableType:
    """Render the best round on validation data beside the newest one, and how to use it."""
    from rich.text import Text

    metric = metric_title(best["metric"])
    if best["round"] == best["newest_round"]:
        return Text(f"Round {best['round']} is the best so far: {metric} {best['value']:.4f}.")
    newest = f"{best['newest_value']:.4f} after round {best['newest_round']}"
    return Text(
        f"Best is round {best['round']}: {metric} {best['value']:.4f}, {newest}. `predict` and `export` take it with "
        "`--round best`."
    )


def _training(training: Mapping[str, Any]) -> output.RenderableType:
    """Render the stage's progress bar and, a line each, the newest value of every loss term."""
    from rich.console import Group
    from rich.text import Text

    name = f"{training['stage']} {training['step']}/{training['steps']}"
    losses = (Text(f"  {loss_title(term)}: {value:.4g}") for term, value in training["loss"].items())
    return Group(progress_line(name, training["step"], training["steps"], ""), *losses)


def _transfer(transfer: Mapping[str, Any]) -> output.RenderableType:
    """Render the progress bar of a transfer; of an outgoing one only the size is known."""
    arrow = "from" if transfer["direction"] == "in" else "to"
    name = f"{transfer['kind']} {arrow} {transfer['peer']}"
    return progress_line(name, transfer.get("received", 0), transfer["bytes"], size(transfer["bytes"]))


def progress_line(name: str, done: float, total: float, note: str) -> output.RenderableType:
    """Render a name, a bar that is visible without colours, and a note that fits a line of 80 columns."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=NAME_WIDTH)
    grid.add_column(width=BAR_WIDTH)
    grid.add_column()
    filled = round(BAR_WIDTH * min(1.0, done / max(total, 1)))
    bar = Text.assemble(("━" * filled, "green" if done >= total else "red"), ("─" * (BAR_WIDTH - filled), "dim"))
    grid.add_row(Text(name), bar, Text(note))
    return grid


def _waiting(wait: Mapping[str, Any]) -> output.RenderableType:
    from rich.text import Text

    left = "" if wait["deadline_s"] is None else f", at most {duration(round(wait['deadline_s']))} more"
    since = duration(round(wait["since_s"]))
    return Text(f"Waiting for {wait['site']}: {wait['artifact']}, for {since}{left}", style="yellow")


def peers(document: Mapping[str, Mapping[str, Any]], *, brief: bool = False) -> output.RenderableType:
    """Render the other sites; ``brief`` omits addresses and the bytes of artifacts.

    Their activity and their routes are two tables, since one would be wider than most terminals.
    """
    from rich.console import Group
    from rich.text import Text

    columns = ("peer", "state", "round", "phase", "done", "last seen")
    doing = output.table(columns if brief else (*columns, "received", "sent"), ())
    reached = output.table(("peer", "at", "route", "program", "epoch"), ())
    for name, peer in document.items():
        seen = None if peer["last_seen_s"] is None else f"{duration(round(peer['last_seen_s']))} ago"
        done = None if peer["progress"] is None else f"{peer['progress']:.0%}"
        values = [peer["round"], peer["phase"], done, seen]
        if not brief:
            artifact_bytes = peer.get("artifact_bytes") or {}
            values += (size(artifact_bytes[way]) if way in artifact_bytes else None for way in ("in", "out"))
            ways = (peer.get(key) for key in ("address", "route", "software", "epoch"))
            reached.add_row(Text(name), *(Text("-" if way is None else one_line(str(way))) for way in ways))
        cells = [Text("-" if value is None else one_line(str(value))) for value in values]
        doing.add_row(Text(name), Text(peer["state"], style=STATE_STYLE.get(peer["state"], "")), *cells)
    problems = [f"{name}: {_each_once(peer['problem'])}" for name, peer in document.items() if peer.get("problem")]
    shown = problems[:PROBLEMS_SHOWN_MAX] if brief else problems
    return Group(*([doing] if brief else [doing, reached]), *(Text(line, style="yellow") for line in shown))


def _each_once(problem: str) -> str:
    """Join the problems of all addresses of a peer, printing a shared remedy once, after the last one."""
    return one_line("; ".join(reversed(dict.fromkeys(reversed(problem.split("; "))))))


def rounds(document: Sequence[Mapping[str, Any]]) -> output.RenderableType:
    """Render one row per round, with its generation if the rounds belong to several."""
    from rich.console import Group
    from rich.text import Text

    rows, planned = [], False
    several = len({record["generation"] for record in document}) > 1
    for record in document:
        sources = ", ".join(source["site"] + (" (stale)" if source["fallback"] else "") for source in record["sources"])
        if sources and record.get("made_in") is not None:
            sources += f" ({made_in(record)})"
        cut = {
            site: f"{'weighs less' if site in record['contributors'] else 'left out'}: {reason}"
            for site, reason in record["cut"].items()
        }
        missing = ", ".join(f"{site} ({reason})" for site, reason in {**record["missing"], **cut}.items())
        shown = {name: value for name, value in record["metrics"].items() if not name.endswith(NOT_SHOWN)}
        metrics = "  ".join(f"{name.removeprefix('train_')} {value:.4g}" for name, value in shown.items())
        artifact = (record["artifact_sha256"] or "-")[:SHORT]
        number = f"{record['round']} of gen {record['generation']}" if several else record["round"]
        facts = (number, sources or "itself", missing, f"{record['duration_s']:.1f}", artifact)
        planned = planned or not (sources or missing)
        rows.append((*facts, _returns(record), _mean(record), metrics))
    columns = ("round", "from", "missing", "train s", "artifact", "came home", "mean", "metrics")
    visits = any(record.get("returned") or record.get("missing_returns") for record in document)
    left_out = set() if visits else {"came home"}
    left_out |= {"mean"} if not any(record["aggregate_sha256"] for record in document) else set()
    kept = [index for index, name in enumerate(columns) if name not in left_out]
    table = output.table([columns[index] for index in kept], [tuple(row[index] for index in kept) for row in rows])
    note = "From itself, nobody missing: the plan of these rounds gave the site no other's model."
    return Group(table, Text(note, style="dim")) if planned else table


def made_in(record: Mapping[str, Any]) -> str:
    """Describe the round that trained the artifacts, if they are one round older than the method's plan."""
    return f"of round {record['made_in']}" if record["made_in"] else "of the initial models"


def _returns(record: Mapping[str, Any]) -> str:
    """List the sites whose copies of this site's model were merged, and those whose were not, with the reason."""
    merged = ", ".join(source["site"] for source in record.get("returned", ()))
    missing = ", ".join(f"{site} ({reason})" for site, reason in record.get("missing_returns", {}).items())
    return f"{merged or '-'}; not {missing}" if missing else merged


def _mean(record: Mapping[str, Any]) -> str:
    """Render the digest of a round's mean, and the peers that reported the same or another one."""
    digest = (record["aggregate_sha256"] or "-")[:SHORT]
    same = ", ".join(site for site, agrees in sorted(record["agrees"].items()) if agrees)
    other = ", ".join(site for site, agrees in sorted(record["agrees"].items()) if not agrees)
    cause = ", ".join(record["equivocated"])
    return (
        digest
        + (f" = {same}" if same else "")
        + (f" ≠ {other}" if other else "")
        + (f" ({cause} signed two artifacts)" if cause else "")
    )


TRANSFER_COLUMNS: Mapping[str, str] = {
    "time": "time", "direction": "way", "peer": "peer", "purpose": "purpose", "kind": "kind", "round": "round",
    "sha256": "sha256", "bytes": "size", "outcome": "outcome",
}  # fmt: skip
"""The heading of each key of a transfer record."""


def transfers(
    document: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = TRANSFER_COLUMNS
) -> output.RenderableType:
    shown = {"time": clock, "sha256": lambda digest: digest[:SHORT], "bytes": size}
    named = [{**record, "kind": f"masked {record['kind']}"} if record.get("masked") else record for record in document]
    rows = [[shown[key](record[key]) if key in shown else record[key] for key in columns] for record in named]
    return output.table(tuple(columns.values()), rows)


def events(document: Sequence[Mapping[str, Any]]) -> output.RenderableType:
    rows = [(clock(row["time"]), row["kind"], row["round"], "  ".join(_facts(row["body"]))) for row in document]
    return output.table(("time", "event", "round", "facts"), rows)


def story(document: Mapping[str, Any]) -> output.RenderableType:
    """Render the sentences about a round, each with its time."""
    sentences = [(clock(sentence["time"]), sentence["text"]) for sentence in document["story"]]
    if document["state"] == "open":
        sentences.append(("", "The round is not over: `mhfl-peer status` says what the site waits for or does now."))
    return output.fields(sentences)


def membership(document: Mapping[str, Any]) -> output.RenderableType:
    """Render the members, the amendments, and what is pending: approvals, notices, forks, other chain tips."""
    from rich.console import Group

    head, members = document["head"], document["members"]
    signs = (
        "the founder" if document["governance"] == "founder" else f"{document['signatures']} of {len(members)} members"
    )
    pairs: list[tuple[str, object]] = [
        ("site", f"{document['site']} of {document['federation']}"),
        ("digest", document["digest"]),
        (
            "head",
            f"amendment {head['number']}, {head['digest']}" if head["number"] else "federation.toml: no amendment",
        ),
        ("signed by", signs),
        ("rounds", document["rounds"]),
        *((("held", "no site opens a round until an amendment ends the hold"),) if document["hold"] else ()),
        *_pending(document),
    ]
    parts: list[output.RenderableType] = [output.fields(pairs)]
    rows = [
        (member["name"], member["from_round"], member["address"], _short(member["key"]), _remark(member))
        for member in members
    ]
    parts.append(output.table(("member", "from round", "address", "key", "remark"), rows))
    if document["epochs"]:
        epochs = [
            (
                epoch["number"],
                _short(epoch["digest"]),
                epoch["from_round"],
                clock(epoch["issued"]),
                "; ".join(epoch["changes"]),
                ", ".join(epoch["signed_by"]),
            )
            for epoch in document["epochs"]
        ]
        parts.append(output.table(("amendment", "digest", "from round", "time", "changes", "signed by"), epochs))
    if document["heads"]:
        heads = [(name, _head_words(stated, head)) for name, stated in document["heads"].items()]
        parts.append(output.table(("peer", "head"), heads))
    return Group(*parts)


def _pending(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for approval in document["approved"]:
        yield "approved", f"amendment {approval['number']}, {approval['digest']}: not enacted here"
    for notice in document["notices"]:
        yield "leaves", f"{notice['site']}, by its notice of {clock(notice['issued'])}"
    for fork in document["forks"]:
        both = ", ".join(fork["signed_both"]) or "nobody"
        yield "fork", f"another amendment {fork['number']}, {fork['other']}, exists; signed both: {both}"


def _remark(member: Mapping[str, Any]) -> str | None:
    if member["leaving"]:
        return "leaves"
    return None if member["accepted"] else "gets nothing from here before `federation accept`"


def _head_words(stated: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    words = f"amendment {stated['number']}, {stated['digest'][:SHORT]}"
    if stated == own:
        return f"{words}: the same"
    return f"{words}: {'ahead' if stated['number'] > own['number'] else 'behind, or another chain'}"


def _short(digest: str | None) -> str | None:
    return None if digest is None else digest[:SHORT]


def _facts(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a journal row that have a value."""
    for key, value in body.items():
        if value not in EMPTY:
            yield f"{key}={_abbreviate(value)}"


def _abbreviate(value: Any) -> str:
    """Shorten a value and drop brackets and quotes; an artifact becomes the start of its digest."""
    if isinstance(value, Mapping):
        known = {key: inner for key, inner in value.items() if inner not in EMPTY}
        text = value["sha256"] if "owner" in value else ", ".join(f"{key} {_abbreviate(known[key])}" for key in known)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        text = ", ".join(map(_abbreviate, value))
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if DIGEST.fullmatch(text):
        text = text[:SHORT]
    return text if len(text) <= 60 else f"{text[:57]}..."


def clock(time_s: float) -> str:
    """Format a Unix time in the operator's time zone."""
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")
