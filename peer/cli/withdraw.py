"""``mhfl-peer withdraw``: where information about a person may be who withdraws the consent to training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click

from peer.cli import output, rendering
from peer.cli.site_command import SiteCall, site_command
from peer.errors import UsageError
from peer.quantities import duration
from peer.site.config.site_folder import must_be_new, write_atomically


@site_command()
@click.option("--subject", "subjects", multiple=True, metavar="ID", help="As in the datalist; may be repeated.")
@click.option("--file", "listed", type=click.File(), help="A file of subjects, one a line; - reads standard input.")
@click.option(
    "--out",
    "--letter",
    "letter",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a letter to the receivers, with rounds and digests alone.",
)
def withdraw(call: SiteCall, subjects: tuple[str, ...], listed: IO[str] | None, letter: Path | None) -> None:
    """Say where information about a person may be who withdraws the consent to training: rounds,
    receivers, files on this machine, and what it costs to train again.

    It works also while the daemon runs, reads only, and deletes nothing. Then take the person's samples out
    of the datalist: `status` and `check` say that they are gone. A sample without a subject is
    named by its image. --file keeps the subject out of the shell's history; no log, journal,
    letter or --json document has it.

    \b
    mhfl-peer withdraw --site europe --subject p-0017 --letter letter.txt
    mhfl-peer withdraw --site europe --file -
    """
    from peer.audit import withdrawal

    lines = [] if listed is None else [line.strip() for line in listed]
    people = list(dict.fromkeys(filter(None, [*subjects, *lines])))
    if not people:
        raise UsageError("no subject is given", "name one with --subject, or a file of them with --file")
    if letter is not None:
        must_be_new(letter)
    document = withdrawal.withdraw(call.folder, people)
    if letter is not None:
        write_atomically(letter, withdrawal.write_letter(document).encode())
        document["letter"] = str(letter)
    call.emit(document, _render)


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group

    held = [use for use in document["uses"] if use["first_round"] is not None]
    facts: list[tuple[str, object]] = [
        ("people", f"{document['people']}; {document['in_datalist']} of them are still in the datalist"),
        ("verdict", _verdict(document, held)),
    ]
    if document["figures_to"]:
        receivers = ", ".join(document["figures_to"])
        facts.append(("figures", f"metrics over the whole test split went to {receivers}: none is of one person"))
    parts: list[output.RenderableType] = [output.fields(facts)]
    uses = [
        (use["generation"], *(spans(use[split]) for split in ("training", "validation", "test", "unknown")))
        for use in document["uses"]
    ]
    parts.append(output.table(("generation", "trained on", "held out", "tested on", "unknown: assume all"), uses))
    if document["sent"]:
        sent = [
            (copy["receiver"], copy["round"], copy["purpose"], copy["kind"], copy["sha256"][: rendering.SHORT])
            for copy in document["sent"]
        ]
        parts.append(output.table(("may hold it: receiver", "round", "purpose", "kind", "sha256"), sent))
    if held:
        local = [
            (copy["what"], rendering.size(copy["bytes"]) if copy["bytes"] else None, copy["delete"])
            for copy in document["local"]
        ]
        parts.append(output.table(("on this machine", "size", "to delete it"), local))
    parts += [output.fields(_way(way)) for way in document["again"]]
    parts.append(output.fields(list(_next(document, held))))
    return Group(*parts)


def _verdict(document: Mapping[str, Any], held: Sequence[Mapping[str, Any]]) -> str:
    if not held:
        return "no recorded round trained on them, and no weights or artifacts of this site hold anything of them"
    receivers = sorted({copy["receiver"] for copy in document["sent"]})
    whom = f"; so may what left for {', '.join(receivers)}" if receivers else ""
    return (
        f"the weights of generation {held[-1]['generation']} may hold something of them since round "
        f"{held[-1]['first_round']}{whom}. What left cannot be recalled, and no model can be made to forget one "
        "person: it can be deleted, or trained again"
    )


def _way(way: Mapping[str, Any]) -> list[tuple[str, object]]:
    steps: list[tuple[str, object]] = [(f"{number}.", step) for number, step in enumerate(way["steps"], 1)]
    cost = f"{way['rounds']} rounds, {duration(round(way['elapsed_s']))}, of which this site trained "
    cost += f"{duration(round(way['training_s']))}, and {rendering.size(way['bytes'])} of artifacts"
    name = f"after round {way['round']}, the last without them" if way["way"] == "from_round" else "from the start"
    return [("train again", name), ("cost", cost), *steps]


def _next(document: Mapping[str, Any], held: Sequence[Mapping[str, Any]]) -> list[tuple[str, object]]:
    steps: list[tuple[str, object]] = []
    if document["in_datalist"]:
        text = "take their samples out of the datalist, then stop and start the site: the next rounds run without them"
        steps.append(("next", text))
    if document["letter"]:
        steps.append(("letter", f"{document['letter']}: send it to the receivers"))
    elif held and document["sent"]:
        steps.append(("next", "--letter FILE writes a letter to the receivers"))
    return steps


def spans(rounds: Sequence[int]) -> str | None:
    """Write rounds as ``1 to 4, 7``; ``None`` for none."""
    parts: list[list[int]] = []
    for number in rounds:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in parts) or None
