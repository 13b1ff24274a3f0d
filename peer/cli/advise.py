"""``mhfl-peer advise``: which method for a federation, and whether joining is likely to pay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from peer.cli import GIVEN_FILE, output
from peer.cli.site_command import SiteCall, site_command
from peer.cli.statistics import read_statistics
from peer.errors import UsageError
from peer.extras import require_extra
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.train.data.datalist import inspect_datalist
from peer.view.dashboard.statistics_page import UNLIKE

CHANCE_ERRORS = 2.0
"""A smaller difference of the labels, in its standard errors, may be chance."""
SHOWN = 2
"""The rows of a study that are always shown; `--json` has all."""


@site_command()
@click.argument("file", metavar="[FEDERATION.TOML]", type=GIVEN_FILE, required=False)
@click.option("--site-file", type=GIVEN_FILE, help="With a FEDERATION.TOML: the site.toml of the site that asks.")
@click.option("--statistics", "statistics_file", type=GIVEN_FILE, help="What `statistics --json` printed.")
@click.option(
    "--results",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder of own results of `simulate`; may be repeated.",
)
def advise(
    call: SiteCall, file: Path | None, site_file: Path | None, statistics_file: Path | None, results: tuple[Path, ...]
) -> None:
    """Say which method suits a federation, and whether joining is likely to pay, by what was
    measured on like data.

    The plan says the task, the sites, and whether networks differ and what leaves has noise; the
    statistics or the site's datalist say how many people a site has, and the statistics whether its
    classes are like the others'. The answer names the measurements on which it rests, and each
    difference from the federation. Often the program does not know, and says why, and which
    commands would find out. Without a FEDERATION.TOML: a site of this machine, with its files.

    \b
    mhfl-peer advise federation.toml
    mhfl-peer advise federation.toml --site-file site.toml --statistics statistics.json
    mhfl-peer advise federation.toml --results runs --json
    mhfl-peer advise --site europe
    """
    from peer.lab.advice.answer import advise as answer
    from peer.lab.advice.evidence import read_results, read_table
    from peer.lab.advice.question import Question

    if file is None and site_file is None:
        file, site_file = call.folder.federation_toml, call.folder.site_toml
    elif file is None or call.site_name is not None:
        raise UsageError("files and a site are two things to ask about", "name a FEDERATION.TOML, or --site alone")
    federation = FederationConfig.load(file)
    site = None if site_file is None else SiteConfig.load(site_file)
    statistics = None if statistics_file is None else read_statistics(statistics_file)
    if results:
        require_extra("research", "`advise --results`")
    own = [study for folder in results for study in read_results(folder)]
    people, source = _count_people(federation, site, statistics)
    alike = None if statistics is None else _compare_labels(statistics)
    document = answer(Question(federation, site, people, source, alike), own, read_table())
    call.emit(document, _render)


def _count_people(
    federation: FederationConfig, site: SiteConfig | None, statistics: Mapping[str, Any] | None
) -> tuple[float | None, str]:
    """Return the people of a site, and where the number stands: the datalist, the statistics, or the plan."""
    if site is not None:
        root = None if site.data.root is None else site.folder / site.data.root
        listed = inspect_datalist(site.folder / site.data.datalist, root=root, **federation.task.labelling())
        people = {sample.subject or index for index, sample in enumerate(listed.training)}
        if people:
            return float(len(people)), "the site's datalist, for training"
    if statistics is not None and statistics["own"]["people"]:
        own = statistics["own"]["people"]
        return float(own), f"the statistics of {statistics['site']}, which count test people too"
    if federation.privacy.people is not None:
        return float(federation.privacy.people), "[privacy] people of the plan"
    return None, ""


def _compare_labels(statistics: Mapping[str, Any]) -> bool | None:
    """Return whether a site's labels are like the others'; ``None`` where the statistics have no difference of them.

    They are unlike if a standardised mean difference d is at least 0.1, at least two standard errors of the noise, and
    beyond chance, which is ``d^2 > 4 (cells - 1) (1 / own + 1 / others)``, and of a number the same with 1 in place of
    ``cells - 1``. Noise beyond 0.1 and chance leaves it unknown.
    """
    variables = [each for each in statistics["variables"] if each["role"] == "target" and each["kind"] != "time"]
    targets = [each for each in variables if each["difference"] is not None]
    for target in targets:
        own, others = target["own"]["known"], target["all"]["known"] - target["own"]["known"]
        degrees = 1 if target["kind"] == "number" else len(target["cells"]) - 1
        chance = CHANCE_ERRORS**2 * degrees * (1 / own + 1 / others)
        noise = 2 * (target.get("difference_error") or 0.0)
        if target["difference"] >= max(UNLIKE, noise) and target["difference"] ** 2 > chance:
            return False
        if noise > max(UNLIKE, chance**0.5):
            return None
    return True if targets else None


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group
    from rich.text import Text

    pairs = [("federation", f"{document['federation']}: {', '.join(_describe_question(document))}")]
    pairs.append(("does joining pay", f"{document['answer']}: {document['reason']}"))
    if document["row"] is not None:
        visits = "" if document["visits"] is None else f", visits = {document['visits']}"
        row = "" if document["row"] == document["method"] else f" (the row {document['row']})"
        pairs.append(("method", f"{document['method']}{visits}{row}: the highest mean gain on Local Test"))
    pairs += [("noise costs", sentence) for sentence in document["noise_costs"]]
    pairs += [("not like here", sentence) for sentence in document["relaxed"]]
    pairs += [("not stated", sentence) for sentence in document["not_stated"]]
    reasons: dict[str, list[str]] = {}
    for row, reason in document["excluded"].items():
        reasons.setdefault(reason, []).append(row)
    pairs += [("does not count", f"{', '.join(rows)}: {reason}") for reason, rows in reasons.items()]
    parts: list[output.RenderableType] = [output.fields(pairs)]
    if document["studies"]:
        heads = ("study", "sites", "people", "row", "gain on Local Test", "on Global Test", "of the room", "")
        parts.append(output.table(heads, _rows(document)))
        sources = {study["source"]: f"{study['metric']}, interval {study['interval']}" for study in document["studies"]}
        parts += [Text(f"{source}: {figures}", style="dim") for source, figures in sources.items()]
    return Group(*parts, Text("To find out on your own data:"), *(Text(f"  {each}") for each in document["find_out"]))


def _describe_question(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is known of the federation."""
    kind, objective = document["kind"], document["objective"]
    yield kind if kind == objective else f"{kind}, {objective}"
    yield f"{document['sites']} sites"
    if document["people"] is not None:
        yield f"{document['people']:g} people a site ({document['people_from']})"
    if document["classes_alike"] is not None:
        yield "classes like the others'" if document["classes_alike"] else "classes unlike the others'"
    yield "own networks" if document["networks_differ"] else "one network"
    yield "no noise" if document["epsilon"] is None else f"noise with ε = {document['epsilon']:g}"


def _rows(document: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    """Yield of each study the best row, the next best one, the plan's own, and those that harmed a site."""
    for study in document["studies"]:
        counted = [row for row in study["rows"] if row["row"] not in document["excluded"]]
        counted.sort(key=lambda row: (row["row"] != document["row"], -(row["local_test"]["mean"] or 0.0)))
        names = [study["name"], study["sites"], f"{study['people']:g}" if study["people"] else "-"]
        for index, row in enumerate(counted):
            gains, share = (row["local_test"], row["global_test"]), row["local_test"]["share"]
            marks = {
                "best": row["row"] == document["row"],
                "the plan's": row["method"] == document["planned"],
                "harmed": any(gain["high"] is not None and gain["high"] < 0 for gain in gains),
            }
            if index < SHOWN or any(marks.values()):
                yield (
                    *names,
                    row["row"],
                    *map(_describe_gain, gains),
                    "" if share is None else f"{share:.0f} %",
                    ", ".join(mark for mark, holds in marks.items() if holds),
                )
                names = [""] * len(names)


def _describe_gain(gain: Mapping[str, float | None]) -> str | None:
    if gain["mean"] is None:
        return None
    span = "" if gain["low"] is None else f" ({gain['low']:+.1f} to {gain['high']:+.1f})"
    return f"{gain['mean']:+.1f}{span}"
