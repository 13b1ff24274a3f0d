"""The answer: the method that was best on like data, and whether joining is likely to pay.

The rules, which ``deploy/README.md`` repeats for operators:

1. Studies of the same kind of task and target count alone. Own results come before the shipped table, which then says
   nothing.
2. A row counts if the federation could train with its method (``Question.refuse``), and was measured as the federation
   would train: without noise, or with an epsilon that is at most the plan's, and at least a ``NEAR``th of it.
3. Of the studies with such rows, the like ones have as many people a site, within a factor of ``NEAR``; like classes
   (alike at all sites, or not); and like networks (one, or own ones). Where no study has all three, networks give way
   first, then classes, then people: the answer says so. What is not known is not compared, nor is the number of sites.
4. The best row has the highest mean gain on Local Test over the like studies that have it.
5. Joining is ``likely`` to pay if all like studies have that row, and the interval of its gain on Local Test is above 0
   in each; it is ``not likely`` if the interval is below 0 in each. Else the program ``does not know``; also from one
   experiment of the shipped table alone or without knowledge of the classes there, without a number of people, and
   where people had to give way, since gains fall as sites grow.

The interval of the best of several methods is too favourable: nothing corrects it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import cast

from peer.documents.laboratory import Advice, AdviceStudy
from peer.lab.advice.evidence import SINGLE, MeasuredGain, Study, StudyRow
from peer.lab.advice.question import Question
from peer.lab.experiments.result_files import CENTRALISED

NEAR = 3.0
"""The factor within which numbers of people count as like, and smaller epsilons."""
SHIPPED_MIN = 2
"""Of the shipped table, like studies of so many experiments are evidence about other data."""
LIKELY, UNLIKELY, UNKNOWN = "likely", "not likely", "does not know"
ALIKE = {True: "alike", False: "unlike", None: "not known"}
NETWORKS = {True: "own networks", False: "one network"}


def advise(question: Question, own: Sequence[Study], shipped: Sequence[Study]) -> Advice:
    """Answer a question from own studies, or from the shipped ones where no own one is of the same task."""
    federation, task = question.federation, question.federation.task
    own_studies = _of_task(question, own)
    studies = own_studies or _of_task(question, shipped)
    like, unmet = _like([each for each in studies if _counted(each, question)], question)
    rows: dict[str, list[StudyRow]] = {}
    for row in (row for study in like for row in _counted(study, question)):
        rows.setdefault(row.row, []).append(row)
    best = max(rows, key=lambda name: fmean(row.local_test.mean or 0.0 for row in rows[name]), default=None)
    first = None if best is None else rows[best][0]
    gains = [] if best is None else [row.local_test for row in rows[best]]
    refused = ((row.row, _refuse(question, row)) for study in studies for row in study.rows)
    tried = first.method if first is not None else federation.method.name if federation.plan.predicts else "fedvisit"
    answer, reason = _decide(question, studies, like, gains, other_people=unmet[0], own=bool(own_studies))
    return {
        "federation": federation.name,
        "planned": federation.method.name,
        "kind": task.kind,
        "objective": task.objective,
        "sites": len(federation.site),
        "people": question.people,
        "people_from": question.people_from,
        "classes_alike": question.classes_alike,
        "networks_differ": question.networks_differ,
        "epsilon": question.epsilon,
        "answer": answer,
        "reason": reason,
        "row": best,
        "method": None if first is None else first.method,
        "visits": None if first is None else question.count_visits(first),
        "studies": [cast(AdviceStudy, asdict(study)) for study in like],
        "relaxed": list(_relaxed(question, like, unmet)),
        "excluded": {row: reason for row, reason in refused if reason is not None},
        "noise_costs": [sentence for study in like for sentence in _noise_costs(study, question)],
        "not_stated": list(_not_stated(question, like)),
        "find_out": [
            f"mhfl-peer simulate experiment.toml --out runs --only local --only {CENTRALISED} --only {tried}",
            f"mhfl-peer advise {shlex.quote(federation.where)} --results runs",
        ],
    }


def _of_task(question: Question, studies: Sequence[Study]) -> list[Study]:
    task = question.federation.task
    return [study for study in studies if (study.kind, study.objective) == (task.kind, task.objective)]


def _refuse(question: Question, row: StudyRow) -> str | None:
    """Return why a row says nothing about this federation; ``None`` if it does."""
    if (reason := question.refuse(row)) is not None:
        return reason
    if row.epsilon is None or question.epsilon is None:
        words = "without" if row.epsilon is None else "with"
        return None if row.epsilon is question.epsilon else f"was measured {words} noise"
    is_near = question.epsilon / NEAR <= row.epsilon <= question.epsilon
    return None if is_near else f"was measured at ε = {row.epsilon:g}"


def _counted(study: Study, question: Question) -> list[StudyRow]:
    return [row for row in study.rows if row.local_test.mean is not None and _refuse(question, row) is None]


def _near(one: float, other: float) -> bool:
    return max(one, other) <= NEAR * min(one, other)


def _unmet(study: Study, question: Question) -> tuple[bool, bool, bool]:
    """Say whether the study misses the condition on people, on classes, on networks: the last one gives way first."""
    people = question.people is not None and not (study.people and _near(study.people, question.people))
    classes = question.classes_alike is not None and study.classes_alike is not question.classes_alike
    return people, classes, study.networks_differ is not question.networks_differ


def _like(studies: Sequence[Study], question: Question) -> tuple[list[Study], tuple[bool, bool, bool]]:
    """Return the studies that miss least, and what they miss."""
    unmet = min((_unmet(study, question) for study in studies), default=(False, False, False))
    return [study for study in studies if _unmet(study, question) == unmet], unmet


def _decide(
    question: Question,
    studies: Sequence[Study],
    like: Sequence[Study],
    gains: Sequence[MeasuredGain],
    *,
    other_people: bool,
    own: bool,
) -> tuple[str, str]:
    """Return the answer and its reason, from the best row's gains in some of the like studies."""
    task = question.federation.task
    if not studies:
        return UNKNOWN, f'nothing was measured of the kind "{task.kind}" with the target "{task.target}"'
    if not gains:
        return UNKNOWN, "nothing was measured, on this kind of task, with a method as this federation could train it"
    signs = [gain.sign for gain in gains]
    above, below = signs.count(1), signs.count(-1)
    measured = (
        f"{len(gains)} of {len(like)} like studies measured the method below; the interval of its gain is above 0 "
    )
    measured += f"in {above}, below 0 in {below}"
    if question.people is None:
        return UNKNOWN, f"gains fall as sites grow, and it is not known how many people a site has; {measured}"
    if other_people:
        return UNKNOWN, f"gains fall as sites grow, and no study has as many people a site; {measured}"
    if None in signs:
        return UNKNOWN, f"a single run has no interval; {measured}"
    if not own and len({study.source for study in like}) < SHIPPED_MIN:
        return UNKNOWN, f"one experiment on other data is too few; {measured}"
    if not own and question.classes_alike is None:
        return UNKNOWN, f"it is not known whether the sites have like classes; {measured}"
    return LIKELY if above == len(like) else UNLIKELY if below == len(like) else UNKNOWN, measured


def _relaxed(question: Question, like: Sequence[Study], unmet: Sequence[bool]) -> Iterator[str]:
    """Say of each condition that gave way what differs."""
    people = ", ".join(dict.fromkeys(f"{study.people:g}" if study.people else "not known" for study in like))
    classes = ", ".join(dict.fromkeys(ALIKE[study.classes_alike] for study in like))
    own = question.networks_differ
    sentences = (
        f"people of a site: {question.people or 0:g} here, {people} there",
        f"classes of the sites: {ALIKE[question.classes_alike]} here, {classes} there",
        f"networks: {NETWORKS[own]} here, {NETWORKS[not own]} there",
    )
    yield from (sentence for sentence, missed in zip(sentences, unmet, strict=True) if missed)


def _noise_costs(study: Study, question: Question) -> Iterator[str]:
    """Say what noise costs each row that counts, against its method without noise in the same study."""
    for row in _counted(study, question):
        plain = next((each for each in study.rows if each.method == row.method and each.epsilon is None), None)
        if row.epsilon is None or plain is None or plain.local_test.mean is None or row.local_test.mean is None:
            continue
        points = plain.local_test.mean - row.local_test.mean
        yield f"{row.row} in {study.name}: {points:.1f} points of {study.metric} on Local Test at ε = {row.epsilon:g}"


def _not_stated(question: Question, like: Sequence[Study]) -> Iterator[str]:
    """Say what is not known, and what would say it."""
    if question.people is None:
        yield "how many people a site has: --statistics, --site-file with its datalist, or [privacy] people says it"
    if question.classes_alike is None:
        yield "whether the sites have like classes: --statistics says it, where no count of the labels is withheld"
    if any(study.interval == SINGLE for study in like):
        yield "how far gains vary: a study is a single run"
