"""``mhfl-peer plan``: who receives from whom, which every site computes from the round key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from peer.cli import Settings, output, pass_settings, shared_options, site_option
from peer.config import site_folder


@click.command(short_help="Show who receives from whom in the coming rounds.")
@site_option
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(1), help="How many rounds to show.")
@click.option("--first", default=1, show_default=True, type=click.IntRange(1), help="The first round to show.")
@output.json_option
@shared_options
@pass_settings
def plan(settings: Settings, site_name: str | None, rounds: int, first: int, as_json: bool) -> None:
    """Show who receives from whom; every site computes the same plan from the shared round key.

    \b
    mhfl-peer plan --site europe --rounds 10
    mhfl-peer plan --site europe --first 20 --rounds 5
    """
    from peer.config.rules import make_rules
    from peer.core import status
    from peer.daemon import startup

    folder = site_folder.find_site(site_folder.home_folder(settings.home), site_name)
    federation, _, own = startup.load(folder)
    rules = make_rules(federation, own.name, own.round_key, without=frozenset(), stay=False)
    document = {"federation": federation.name, **status.plan_of(rules, rounds=rounds, first=first)}
    output.emit(document, as_json=as_json, render=_render)


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group

    names = document["sites"]
    rows = []
    for record in document["rounds"]:
        receives = record["receives_from"]
        rows.append((record["round"], *(", ".join(receives.get(name, ())) or "itself" for name in names)))
    if document["artifact"] is None:
        return f"{document['federation']}: with this method nobody sends anything"
    title = f"{document['federation']}: whose {document['artifact']} each site receives ({document['schedule']})"
    return Group(title, output.table(("round", *names), rows))
