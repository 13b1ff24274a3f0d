"""Tables of disturbed federations: lost links, removed and left-out sites, changing members, Byzantine insiders.

Each table compares them with the undisturbed federation, as dFLMoE's table 6 does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from peer.lab.experiments.result_files import ATTACK_SUCCESS, UNDISTURBED
from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison
from peer.lab.report.curves import POINTS_MIN, marker_options
from peer.lab.report.measurements import mean_across, mean_cells
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.published import MEAN, TESTS
from peer.lab.report.table import EMPTY, Cell, Column, Table, lay_out

LOCAL = "local"
TRAINED_THERE = "trained at the site itself"
"""The row of the left-out site's own model, with which the others' are compared."""
TAKEN = "triggered images that become class 0"
"""The group of the columns of what a backdoor achieves."""
Links = Mapping[str, Any]
"""The settings of one kind of links, from ``experiment.json``."""


def insider_of(links: Links) -> str:
    """Return the site that attacks under these links; empty if none does."""
    return str(links.get("insider") or "")


def loses_links_only(links: Links) -> bool:
    """Return whether all sites are honest members from the first round to the last."""
    return not links["removed"] and not insider_of(links) and not links.get("epochs")


def _links_with_runs(comparison: Comparison, are_wanted: Callable[[Links], object]) -> dict[str, Links]:
    """Select the links that have runs in the setting, by name, in the experiment's order."""
    present = {run.links for run in comparison.results.runs if run.setting == comparison.setting}
    return {key: links for key, links in comparison.results.links.items() if key in present and are_wanted(links)}


def lost_links(comparison: Comparison, *, name: str) -> Table | None:
    """Tabulate both tests by the share of lost links; None with fewer than two shares."""
    keys = _links_with_runs(comparison, loses_links_only)
    if len(keys) < 2:
        return None
    scores, columns = {key: comparison.scores_with(key) for key in keys}, []
    for test in TESTS:
        for key, links in keys.items():
            share = float(links["loss"])
            heading = "none" if share == 0 else f"{share:.0%}"
            column = comparison.column(heading, f"{test.title()} Test, links lost")
            columns.append((column, comparison.cells(scores[key].means[test])))
    notes = (
        f"{comparison.unit.axis}, mean over sites, over {comparison.results.repeats}. Each directed link is down in "
        "each round with this probability. Methods that send nothing lose nothing and have no further runs.",
        *_untrained_notes(comparison, keys),
    )
    return lay_out(name, "Lost links", columns, comparison.labels, ranked=comparison.ranked, notes=notes)


def _untrained_notes(comparison: Comparison, keys: Mapping[str, Links]) -> Iterator[str]:
    """Describe lost optimiser steps: no site trains a model that does not arrive."""
    facts = {key: comparison.measured.facts_of(comparison.setting, key) for key in keys}
    means = {key: facts[key].groupby("label")["steps"].mean().to_dict() for key in keys}
    for label in comparison.labels:
        steps = [means[key][label] for key in keys if label in means[key]]
        if len(set(steps)) > 1:
            yield (
                f"{label}: a model that does not arrive is not trained in that round; from left to right, the models "
                f"were trained for {', '.join(f'{mean:,.0f}' for mean in steps)} optimiser steps."
            )


def by_loss(comparison: Comparison) -> dict[str, dict[float, tuple[float, float]]]:
    """Return mean and deviation of the Local Test by label and loss probability, in the table's unit."""
    points: dict[str, dict[float, tuple[float, float]]] = {}
    for key, links in _links_with_runs(comparison, loses_links_only).items():
        for label, cell in comparison.cells(comparison.scores_with(key).means["local"]).items():
            if cell.value is not None:
                points.setdefault(label, {})[float(links["loss"])] = (cell.value, cell.std or 0.0)
    return {label: points[label] for label in comparison.labels if label in points}


def link_loss_figure(comparison: Comparison, styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """Plot the Local Test over the probability of link loss; None if no method has several."""
    values = {label: points for label, points in by_loss(comparison).items() if len(points) >= POINTS_MIN}
    if not values:
        return None
    figure, ((axes,),) = plotting.new_figure(6.4, 3.0)
    for label, points in values.items():
        losses = sorted(points)
        means, deviations = zip(*(points[loss] for loss in losses), strict=True)
        axes.errorbar(
            [100 * loss for loss in losses], means, deviations, color=styles[label].colour, capsize=2,
            elinewidth=0.7, linewidth=1.6, label=label, **marker_options(styles[label], 0),
        )  # fmt: skip
    axes.set_xlabel("directed links down in a round, %")
    axes.set_ylabel(f"Local Test {comparison.unit.axis}, mean over sites")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return plotting.render(
        figure,
        name=name,
        title="Link loss",
        caption="Bars: one standard deviation. Each directed link is down with this probability in each round.",
    )


def removed_sites(comparison: Comparison, *, name: str) -> Table | None:
    """Compare each federation without some sites with the whole one, on the remaining sites.

    Returns:
        None without such runs.
    """
    columns = []
    keys = _links_with_runs(comparison, lambda links: links["removed"] and not links.get("left_out"))
    for key, links in keys.items():
        group = f"Local Test, without {', '.join(links['removed'])}"
        for heading, each in (("all took part", UNDISTURBED), ("removed", key)):
            means = comparison.scores_with(each, without=links["removed"]).means["local"]
            columns.append((comparison.column(heading, group), comparison.cells(means)))
    if not columns:
        return None
    notes = (
        f"{comparison.unit.axis}, mean over the remaining sites, over {comparison.results.repeats}. Left: the "
        "federation of all sites, evaluated on the remaining ones only; right: the removed sites never took part.",
    )
    return lay_out(name, "Removed sites", columns, comparison.labels, ranked=comparison.ranked, notes=notes)


def insiders(comparison: Comparison, *, name: str) -> Iterator[Table]:
    """Tabulate the honest sites' Local Test by attack and method, then its loss.

    Yields nothing without such runs.
    """
    acts = _links_with_runs(comparison, insider_of)
    if not acts:
        return
    unit, results = comparison.unit, comparison.results
    names = {insider_of(links) for links in acts.values()}
    absent = list(_links_with_runs(comparison, lambda links: set(links["removed"]) == names))
    headings = {UNDISTURBED: "honest"} | dict.fromkeys(absent, "absent")
    headings |= {key: f"{key} ({links['act']})" for key, links in acts.items()}
    means = {
        key: comparison.scores_with(key, without={insider_of(acts[key])} if key in acts else names).means["local"]
        for key in headings
    }
    taken = {
        key: comparison.measured.scores(comparison.setting, ATTACK_SUCCESS, key, without=names).means["local"].dropna()
        for key in headings
    }
    columns = []
    for group, digits, cells in (
        ("method", unit.digits, {key: comparison.cells(values) for key, values in means.items()}),
        (TAKEN, 2, {key: mean_cells(values, factor=1, ddof=results.ddof) for key, values in taken.items()}),
    ):
        for label in comparison.labels:
            by_act = {key: cells[key][label] for key in headings if label in cells[key]}
            if by_act or group == "method":
                column = Column(label, group, digits, "lower") if group == TAKEN else comparison.column(label, group)
                columns.append((column, by_act))
    notes = (
        f"{unit.axis}, mean over the other sites, over {results.repeats}. {', '.join(sorted(names))} is the "
        "insider. honest: it sends what it trained; absent: it never took part.",
    )
    title = f"One insider: {unit.axis}"
    yield lay_out(name, title, columns, headings, headings=headings, notes=notes, head="insider")
    reference = absent[0] if absent else UNDISTURBED
    losses: dict[str, dict[str, Cell]] = {label: {} for label in comparison.labels}
    for key, links in acts.items():
        usual = comparison.scores_with(reference, without={insider_of(links)}).means["local"]
        change = ((usual - means[key]) * (1 if unit.higher else -1)).dropna()
        for label, values in change.groupby(level="label"):
            mean, worst = (f"{value * unit.factor:.{unit.digits}f}" for value in (fmean(values), max(values)))
            losses[str(label)][key] = Cell(text=f"{mean} ({worst})")
    columns = [(Column(label, "method", unit.digits), by_act) for label, by_act in losses.items()]
    compared = "the run where it never took part" if absent else "the run where it is honest"
    notes = (f"How much worse than in {compared}: mean, and in parentheses the worst, over {results.repeats}.",)
    title = f"What one insider costs: {unit.axis}"
    yield lay_out(f"{name}-loss", title, columns, acts, headings=headings, notes=notes, head="insider")


def coming_and_going(comparison: Comparison, *, name: str) -> Iterator[Table]:
    """Compare sites that stayed, and sites that joined late, with the federation of unchanged members.

    Yields one table for each schedule of changes, none without such runs.
    """
    for key, links in _links_with_runs(comparison, lambda links: links.get("epochs")).items():
        yield _changing_members(comparison, key, links["epochs"], name=f"{name}-{key}")


def _changing_members(comparison: Comparison, key: str, changes: Sequence[Links], *, name: str) -> Table:
    unit, results, columns = comparison.unit, comparison.results, []
    sites = set(results.sites(comparison.setting))
    joined = {site for change in changes for site in change["add"]}
    gone = {site for change in changes for site in (*change["leave"], *change["expel"])}
    for who, members in {"stayed": sites - joined - gone, "joined late": joined - gone}.items():
        if not members:
            continue
        group = f"Local Test of who {who} ({', '.join(sorted(members))})"
        whole, changed = (
            comparison.scores_with(links, without=sites - members).means["local"] for links in (UNDISTURBED, key)
        )
        factor, point, digits = unit.point
        difference = Column(f"difference, {point}", group, digits)
        columns += [
            (comparison.column("always all", group), comparison.cells(whole)),
            (comparison.column(key, group), comparison.cells(changed)),
            (difference, mean_cells(changed - whole, factor=factor, ddof=results.ddof)),
        ]
    notes = [
        f"{key}: {'; '.join(map(_in_words, changes))}.",
        f"{unit.axis}, mean over the named sites, over {results.repeats}. always all: all sites were members in every "
        f"round; difference: {key} minus always all.",
    ]
    alone = [label for label in comparison.labels if results.method_of(label) == LOCAL]
    if alone:
        notes.append(
            f"{', '.join(alone)}: {EMPTY} where members come and go, since each site trains alone, and nothing changes "
            "for it."
        )
    title = f"Members that come and go: {key}"
    return lay_out(name, title, columns, comparison.ranked, ranked=comparison.ranked, notes=notes)


def _in_words(change: Mapping[str, Any]) -> str:
    names = {"add": "joined", "leave": "left", "expel": "was expelled"}
    done = [f"{', '.join(change[key])} {verb}" for key, verb in names.items() if change[key]]
    return f"from round {change['from_round']} on, {' and '.join(done)}"


def left_out_sites(comparison: Comparison, *, name: str) -> Table | None:
    """Evaluate the other sites' models on the test samples of each left-out site, by method.

    Returns:
        None without such runs.
    """
    keys = _links_with_runs(comparison, lambda links: links.get("left_out"))
    links_by_site = {str(keys[key]["left_out"]): key for key in sorted(keys)}
    if not links_by_site:
        return None
    own = f"{comparison.local}, {TRAINED_THERE}"
    values = {site: _elsewhere(comparison, key, site) for site, key in links_by_site.items()}
    values[MEAN] = mean_across(pd.concat(values.values(), axis=1, join="inner"))
    cells = {site: comparison.cells(series) for site, series in values.items()}
    if comparison.local is not None:
        local = comparison.scores.by_test["local"]
        spreads = {site: comparison.cells(local[site]) for site in links_by_site if site in local}
        if set(local) == set(links_by_site):
            spreads[MEAN] = comparison.cells(comparison.scores.means["local"])
        for site, by_label in spreads.items():
            if comparison.local in by_label:
                cells[site][own] = by_label[comparison.local]
    columns = [(comparison.column(site, "left out"), by_label) for site, by_label in cells.items()]
    notes = (
        f"Over {comparison.results.repeats}: the mean over the models of the sites that took part, on the test "
        "samples of the one that did not. Each federation without one site is trained anew.",
    )
    labels = [*comparison.labels, *([own] if comparison.local is not None else ())]
    title = f"Leave one site out, {comparison.unit.axis}"
    return lay_out(name, title, columns, labels, ranked=comparison.ranked, notes=notes)


def _elsewhere(comparison: Comparison, links: str, left_out: str) -> pd.Series:
    """Average the other sites' models on the left-out site's test samples, by label and repeat.

    A site that trains alone has the same model in the undisturbed federation.
    """
    lines = [comparison.measured.values(comparison.setting, comparison.metric, key) for key in (links, UNDISTURBED)]
    is_alone = [each["label"].map(comparison.results.method_of) == LOCAL for each in lines]
    both = pd.concat([lines[0][~is_alone[0]], lines[1][is_alone[1]]])
    others = both[(both["split"] == left_out) & (both["model"] != left_out)]
    by_model = others.set_index(["label", "repeat", "seed", "model"])["value"].unstack("model")
    return mean_across(mean_across(by_model).unstack("seed"))
