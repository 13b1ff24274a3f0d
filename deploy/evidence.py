"""Write ``peer/lab/advice/evidence.csv`` from the tables of RESULTS.md; ``--check`` only compares.

Run it from anywhere: ``python deploy/evidence.py``. Every figure of a method is a cell of RESULTS.md. What each study
is of (sites, people, classes, networks) stands in its preset and in the text above its table, and is repeated here.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent
RESULTS = DEPLOY / "examples" / "experiments" / "RESULTS.md"
TABLE = DEPLOY.parent / "peer" / "lab" / "advice" / "evidence.csv"
TESTS = ("local", "global")
FIGURES = [f"{test}{part}" for test in TESTS for part in ("", "_deviation", "_gain", "_low", "_high", "_share")]
COLUMNS = [
    *("study", "command", "kind", "target", "sites", "people", "classes", "networks", "metric", "repetitions"),
    *("row", "method", "epsilon", "shared_noise", "visits"),
    *FIGURES,
]
METHODS = {"fedcross_ft-passes": "fedcross_ft", "pooled_head-epsilon-1": "pooled_head", "pooled bound": "centralised"}
"""The method of a row that has another name."""
NOISE = {"pooled_head-epsilon-1": {"epsilon": "1", "shared_noise": "yes"}}
"""Of rows of the hospitals: the noise, which sites share."""
HOSPITALS = {"Cleveland": 182, "Hungary": 176, "Switzerland": 74, "VA Long Beach": 120}
"""By hospital, three fifths of its patients, who are for training."""
MEANS = {
    "alone": ("", "local", "local"),
    "logistic regression, alone": ("linear", "local", "local"),
    "FedAvg": ("linear", "fedavg", "fedavg"),
    "FedVisit's twin": ("linear", "fedvisit_twin", "fedvisit_twin"),
    "pooled head": ("linear", "pooled_head", "pooled_head"),
    "pooled head, shared": ("linear", "pooled_head-shared", "pooled_head"),
    "pooled head, each": ("linear", "pooled_head-each", "pooled_head"),
    "pooled bound": ("linear", "centralised", "centralised"),
    "perceptron, alone": ("perceptron", "local", "local"),
    "perceptron, FedAvg": ("perceptron", "fedavg", "fedavg"),
}
"""Rows of "Heart disease with noise": the network of all hospitals, the row's name here, and its method."""
PRIVATE = {
    "digits": ("digits-private", "classification", 40),
    "EEG, blinks": ("eeg-private", "time_series", 20),
    "lung nodules": ("nodules-private", "classification", 20),
}
"""Columns of "Digits, EEG and nodules with noise": preset, kind of task, people a site."""
FLAMBY = {
    "pooled": "centralised",
    "alone": "local",
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "SCAFFOLD": "scaffold",
    "FedVisit": "fedvisit",
    "pooled head": "pooled_head",
}
"""Rows of "Beside FLamby", and their methods."""
Line = dict[str, str]


def study(name: str, preset: str, *facts: object) -> Line:
    """Return the cells that all rows of a study share."""
    simulate = f"mhfl-peer simulate deploy/examples/experiments/{preset}.toml --out {preset}"
    command = simulate if preset else "mhfl-peer demo --splits 20"
    return dict(zip(COLUMNS, map(str, (name, command, *facts)), strict=False))


GAINS = (
    ("digits", "`iid`", study("digits, classes alike", "digits", "classification", "class", 6, 40, "alike")),
    (
        "digits",
        "`dirichlet-0.5`",
        study("digits, classes differ", "digits", "classification", "class", 6, 40, "differ"),
    ),
    ("EEG, short", "room taken", study("EEG, blinks", "eeg-blink", "time_series", "class", 6, 20, "alike")),
    ("EEG, slow", "room taken", study("EEG, slow potentials", "eeg-scp1", "time_series", "class", 6, 12, "alike")),
    ("Lung nodules", "room taken", study("lung nodules", "nodules-20", "classification", "class", 6, 20, "alike")),
)
"""Tables with paired gains: a word of the heading below "Simulations", one before the table, and the study."""


def section(text: str, heading: str) -> str:
    """Return the text below the first heading with these words, up to the next one."""
    found = re.search(rf"^##+ [^\n]*{re.escape(heading)}.*?(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"{RESULTS} has no heading with {heading!r}")
    return found.group(0)


def table(text: str, after: str) -> list[Line]:
    """Return the first table that ends after these words, each row by heads; a repeated head ends with 2."""
    place = text.find(after)
    lines = text[text.rfind("\n", 0, place) + 1 :].splitlines() if place >= 0 else []
    start = next((number for number, line in enumerate(lines) if line.startswith("|")), len(lines))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    if len(rows) < 3:
        raise SystemExit(f"{RESULTS} has no table after {after!r}")
    heads = [f"{head}{' 2' if head in rows[0][:number] else ''}" for number, head in enumerate(rows[0])]
    return [dict(zip(heads, row, strict=True)) for row in rows[2:]]


def gain(test: str, cell: str) -> Line:
    """Split ``+1.2 (-0.3 to +2.7)`` into the gain and its interval."""
    numbers = [number.lstrip("+") for number in re.findall(r"[+-]?[\d.]+", cell)]
    return dict(zip((f"{test}_gain", f"{test}_low", f"{test}_high"), numbers, strict=False))


def value(test: str, cell: str) -> Line:
    """Split ``0.825 ± 0.022`` into mean and standard deviation."""
    return dict(zip((test, f"{test}_deviation"), re.findall(r"[\d.]+", cell), strict=False))


def named(row: str) -> Line:
    return {"row": "centralised" if row == "pooled bound" else row, "method": METHODS.get(row, row)}


def read_gains(text: str) -> Iterator[Line]:
    for heading, before, facts in GAINS:
        metric = "accuracy" if heading == "digits" else "AUC"
        shared = facts | {"networks": "differ", "metric": metric, "repetitions": "5"}
        for cells in table(section(text[text.index("## Simulations") :], heading), before):
            visits = {"visits": "2"} if cells["method"] == "fedvisit" else {}
            yield shared | named(cells["method"]) | visits | read_paired(cells)
        preset = facts["command"].rpartition(" ")[2]
        shared |= study(facts["study"], f"tuned-{preset}")
        words = f"`tuned-{preset}`, {before}" if heading == "digits" else f"`tuned-{preset}`:"
        for cells in table(section(text, "With tuned rates"), words):
            if cells["method"] not in ("centralised", "local"):
                line = shared | named(cells["method"]) | read_paired(cells)
                yield line | {"row": f"{cells['method']}-tuned"}


def read_paired(cells: Line) -> Line:
    line: Line = {}
    for test, mark in zip(TESTS, ("", " 2"), strict=True):
        line |= value(test, cells[f"{test.title()} Test"]) | gain(test, cells[f"gain{mark}"])
        line |= {f"{test}_share": cells[f"room taken{mark}"].removesuffix(" %")}
    return line


def read_hospitals(text: str) -> Iterator[Line]:
    part = section(text, "Four real hospitals")
    tables = [table(part, words) for words in ("AUC on a hospital's own", "AUC of the same models")]
    for hospital, people in HOSPITALS.items():
        facts = study(f"heart disease, {hospital}", "", "tabular", "class", 4, people, "differ", "differ", "AUC", 20)
        lines: dict[str, Line] = {}
        for test, rows in zip(TESTS, tables, strict=True):
            name = ""
            for cells in rows:
                if cells["method"] == "gain, points":
                    lines[name] |= gain(test, cells[hospital])
                    continue
                name = cells["method"]
                line = lines.setdefault(name, facts | named(name) | NOISE.get(name, {}))
                line[test] = cells[hospital].split()[0]
        yield from lines.values()


def read_means(text: str) -> Iterator[Line]:
    rows = table(section(text, "Heart disease with noise"), "what all hospitals have")
    for wanted in ("linear", "perceptron"):
        preset = "heart-disease-private"
        facts = study(f"heart disease, {wanted}", preset, "tabular", "class", 4, 138, "differ", "one", "AUC", 5)
        for cells in rows:
            network, row, method = MEANS[cells["what all hospitals have"]]
            if network != wanted:
                continue
            line = facts | with_noise(row, method, cells["ε"])
            yield line | value("local", cells["Local Test"]) | value("global", cells["Global Test"])


def with_noise(row: str, method: str, cell: str) -> Line:
    epsilon = cell if cell[0].isdecimal() else ""
    label = f"{row}-epsilon-{epsilon}" if epsilon else row
    shared = "yes" if row == "pooled_head-shared" else ""
    return {"row": label, "method": method, "epsilon": epsilon, "shared_noise": shared}


def read_images_with_noise(text: str) -> Iterator[Line]:
    rows = table(section(text, "nodules with noise"), "what all sites have")
    for column, (preset, kind, people) in PRIVATE.items():
        facts = study(f"{column}, one network", preset, kind, "class", 6, people, "alike", "one", "AUC", 5)
        for cells in rows:
            _, row, method = MEANS[cells["what all sites have"]]
            yield facts | with_noise(row, method, cells["ε"]) | value("local", cells[column])


def read_flamby(text: str) -> Iterator[Line]:
    facts = ("tabular", "class", 4, 121, "differ", "one", "accuracy", 5)
    for cells in table(section(text, "Beside FLamby"), "FLamby's |"):
        if (row := FLAMBY.get(cells["method"])) is not None:
            shared = study("heart disease as in FLamby", "heart-disease-flamby", *facts)
            yield shared | {"row": row, "method": row} | value("local", cells["ours"])


def read_tissue(text: str) -> Iterator[Line]:
    facts = ("segmentation", "class", 4, "", "", "differ", "Dice", 1)
    for cells in table(section(text, "Tissue of one"), "Local Test, Dice"):
        line = study("tissue of one brain", "tissue", *facts) | named(cells["method"])
        yield line | {test: cells[f"{test.title()} Test, Dice"] for test in TESTS}


def build(text: str) -> str:
    """Return the table as CSV."""
    readers = (read_gains, read_hospitals, read_means, read_images_with_noise, read_flamby, read_tissue)
    lines: Iterable[Mapping[str, str]] = (line for reader in readers for line in reader(text))
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: cell if cell != "–" else "" for key, cell in line.items()} for line in lines)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if the table is stale")
    check = parser.parse_args().check
    text = build(RESULTS.read_text("utf-8"))
    if check and TABLE.read_text("utf-8") != text:
        sys.exit(f"{TABLE} is stale: run python deploy/evidence.py")
    if not check:
        TABLE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
