"""Write ``deploy/reference.md`` from the program; ``--check`` only compares.

Run it from anywhere: ``python deploy/reference.py``. Exit codes, documents, configuration keys and
metrics come from the code. The meaning of a configuration key is the comment above it in
``deploy/examples``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel

DEPLOY = Path(__file__).resolve().parent
sys.path.insert(0, str(DEPLOY.parent))

from peer.daemon.metrics import METRICS  # noqa: E402 - found beside this script, whether installed or not
from peer.documents.registry import DOCUMENTS  # noqa: E402
from peer.errors import EXIT_CODES  # noqa: E402
from peer.lab.experiments.experiment import Experiment  # noqa: E402
from peer.site.config.schema import FederationConfig, SiteConfig  # noqa: E402

PAGE = DEPLOY / "reference.md"
FILES = (("federation.toml", FederationConfig), ("site.toml", SiteConfig), ("experiment.toml", Experiment))
HEAD = """\
# Reference

`python deploy/reference.py` writes this page from the program, and `make lint` fails when it is stale.
"""
EXIT_CODES_LEAD = """\
An error is one line on standard error. It names the file, key or peer and says what to do;
`--debug` shows the traceback. Exit code 0 is success; 1 is an internal error, which is worth a
report.
"""
JSON_LEAD = """\
Every command that shows something takes `--json` and prints one document; `--watch --json` prints
one a line. Times are Unix seconds. Durations are seconds, and their keys end in `_s`. While the
daemon is down, `status` says `"daemon": "down"` and shows what the journal has.
"""
CONFIGURATION_LEAD = """\
[federation.toml](examples/federation.toml) is the same at every site,
[site.toml](examples/site.toml) is private to a site, and
[experiment.toml](examples/experiment.toml) is for `simulate`. The linked examples show every key in
its table. NAME stands for a name of your choice. "needed" marks keys without which the file is
refused; any other key may be left out, also where it has no default.
"""
METRICS_LEAD = """\
A daemon serves these metrics at the address that `[metrics]` of `site.toml` names.
[prometheus](prometheus/README.md) has the alerts, and what to do about each. `process_*` describes
the daemon's process, `mhfl_worker_process_*` the worker's.

The daemon counts rounds, contributions, transfers, refusals, denied calls and failures from the
journal and the egress ledger, over all generations: a restart resets none of them. `peer` is a site
of the roster. In `mhfl_calls_denied_total` it is also `unknown`, for callers whose certificate
names no site. It is empty for an export, which has no receiver. The unit is in the name.
"""
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "any"}
SCHEMA_WORDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
SECTION = re.compile(r"#?\[\[?([^\[\]]+)\]\]?$")
KEY = re.compile(r"#?([\w.]+) = ")
NAME = "NAME"
"""The part of a key's path that stands for a name that the file's author chooses."""

KeyPath = tuple[str, ...]
Schema = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Write the page; the exit status is 1 if ``--check`` finds it stale, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the page is stale")
    check = parser.parse_args(arguments).check
    text = render_page()
    if PAGE.exists() and PAGE.read_text("utf-8") == text:
        return 0
    if check:
        print(f"{PAGE.relative_to(DEPLOY.parent)} is stale: run python deploy/reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, "utf-8")
    print(f"{PAGE.relative_to(DEPLOY.parent)} written")
    return 0


def render_page() -> str:
    parts = [HEAD, "## Exit codes\n", EXIT_CODES_LEAD, exit_codes(), "## JSON\n", JSON_LEAD, *json_documents()]
    parts += ["## Configuration\n", CONFIGURATION_LEAD]
    for name, model in FILES:
        parts += configuration(name, model)
    parts += ["## Metrics\n", METRICS_LEAD, metrics()]
    return "\n".join(parts)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def exit_codes() -> str:
    """The exit codes of ``peer.errors``."""
    return table(
        ("code", "meaning", "what to do"), ((str(code), row.meaning, row.remedy) for code, row in EXIT_CODES.items())
    )


# --- documents --------------------------------------------------------------------------------------------------------
def json_documents() -> Iterator[str]:
    """A table of the commands, then one table of each record's keys, in the order of the first
    reference.
    """
    yield table(("command", "document"), ((f"`{name}`", type_words(kind)) for name, kind in DOCUMENTS.items()))
    collected: dict[str, Any] = {}
    for kind in DOCUMENTS.values():
        collect_records(kind, collected)
    for name, record in collected.items():
        yield f"### {name}\n"
        yield f"{' '.join(str(record.__doc__).split())}\n"
        yield table(("key", "type", "meaning"), (document_key(key, kind) for key, kind in hints(record).items()))


def hints(record: Any) -> dict[str, Any]:
    """The keys of a record with their annotations."""
    return get_type_hints(record, include_extras=True)


def collect_records(kind: Any, collected: dict[str, Any]) -> None:
    """Add every record within an annotation to ``collected``, by its name."""
    if is_typeddict(kind):
        if kind.__name__ in collected:
            return
        collected[kind.__name__] = kind
        for inner in hints(kind).values():
            collect_records(inner, collected)
    for inner in get_args(kind):
        collect_records(inner, collected)


def document_key(name: str, annotation: Any) -> tuple[str, str, str]:
    """The row of a key: name, type and meaning."""
    meaning, optional = "", False
    while get_origin(annotation) in (Annotated, NotRequired):
        if get_origin(annotation) is NotRequired:
            optional = True
        else:
            (meaning,) = annotation.__metadata__
        annotation = get_args(annotation)[0]
    return f"`{name}`", type_words(annotation) + (", or absent" if optional else ""), meaning


def type_words(kind: Any) -> str:
    """An annotation in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if origin in (Union, UnionType):
        return " or ".join(map(type_words, parts))
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in parts)
    if origin is list:
        return f"list of {type_words(parts[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return "object" if parts[1] is Any else f"object of {type_words(parts[1])}"
    return WORDS[kind]


# --- configuration ----------------------------------------------------------------------------------------------------
def configuration(file: str, model: type[BaseModel]) -> Iterator[str]:
    """The table of a configuration file's keys."""
    comments = {
        path: comment for path, comment in read_comments((DEPLOY / "examples" / file).read_text("utf-8")) if comment
    }
    schema = model.model_json_schema()
    yield f"### {file}\n"
    yield table(
        ("key", "type", "default", "meaning"),
        (
            (f"`{'.'.join(path)}`", schema_words(part), default(part, path, required), meaning(path, comments))
            for path, part, required in keys(schema, schema, ())
        ),
    )


def read_comments(text: str) -> Iterator[tuple[KeyPath, str]]:
    """The path of every key and table of a commented example, with the comment above it."""
    path: KeyPath = ()
    comment: list[str] = []
    shared = ""  # the comment of several keys that follow each other below it
    for line in text.splitlines():
        if line.startswith("# "):
            comment.append(line.removeprefix("# "))
            continue
        shared = " ".join(comment).removesuffix(".").removesuffix(" (an example)") if comment else line and shared
        comment = []
        if (section := SECTION.match(line)) is not None:
            path = tuple(section.group(1).replace('"', "").split("."))
            yield path, shared
        elif (key := KEY.match(line)) is not None:
            yield (*path, *key.group(1).split(".")), shared


def meaning(path: KeyPath, comments: Mapping[KeyPath, str]) -> str:
    """The comment of a key, or else of the table that it is in."""
    for count in range(len(path), 0, -1):
        for known, comment in comments.items():
            if len(known) == count and all(a in (b, NAME) for a, b in zip(path, known, strict=False)):
                return comment
    return ""


def keys(whole: Schema, part: Schema, path: KeyPath) -> Iterator[tuple[KeyPath, Schema, bool]]:
    """Every key of a table and of the tables in it: its path, its schema, and whether it is needed."""
    for key, value in part["properties"].items():
        inner_path, within = (*path, key), value
        while (inner := within.get("additionalProperties", within.get("items"))) and inner is not True:
            inner_path = (*inner_path, NAME) if "additionalProperties" in within else inner_path
            within = inner
        for choice in within.get("anyOf", [within]):
            name = str(choice.get("$ref", "")).rpartition("/")[2]
            if name and "properties" in whole["$defs"][name]:
                yield from keys(whole, whole["$defs"][name], inner_path)
                break
        else:
            yield (*path, key), value, key in part.get("required", ())


def schema_words(part: Schema) -> str:
    """A JSON schema in words."""
    if "anyOf" in part:
        return " or ".join(schema_words(choice) for choice in part["anyOf"] if choice.get("type") != "null")
    if "enum" in part:
        return " or ".join(f"`{json.dumps(value)}`" for value in part["enum"])
    kind = part.get("type")
    if "prefixItems" in part:
        return f"[{', '.join(schema_words(item) for item in part['prefixItems'])}]"
    if kind == "array":
        return f"list of {schema_words(part['items'])}"
    if kind == "object":
        return "table"
    words = SCHEMA_WORDS.get(str(kind), "any value")
    bounds = [f"{sign} {part[name]}" for name, sign in BOUNDS.items() if name in part]
    return ", ".join([words, *bounds])


def default(part: Schema, path: KeyPath, required: bool) -> str:
    """The value that holds where the key is left out."""
    if path[0] == "stages":
        return "the method's"
    if required:
        return "needed"
    value = part.get("default")
    return "" if value is None else f"`{json.dumps(value)}`"


# --- metrics ----------------------------------------------------------------------------------------------------------
def metrics() -> str:
    """The metrics of a daemon."""
    return table(
        ("metric", "type", "labels", "meaning"),
        (
            (f"`{name}`", metric_type(name), ", ".join(f"`{label}`" for label in metric.labels), metric.text)
            for name, metric in METRICS.items()
        ),
    )


def metric_type(name: str) -> str:
    """Prometheus' type of a metric, by the end of its name."""
    return "counter" if name.endswith("_total") else "info" if name.endswith("_info") else "gauge"


if __name__ == "__main__":
    sys.exit(main())
