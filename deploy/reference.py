"""Write ``deploy/reference.md`` and the comments of the example files from the program; ``--check`` only compares.

Run it from anywhere: ``python deploy/reference.py``. Exit codes, documents, configuration keys and metrics come from
the code. The meaning of a configuration key is the docstring below it in its table. The examples have it above their
keys; order and values of the keys are their own.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import click
from pydantic import BaseModel

DEPLOY = Path(__file__).resolve().parent
sys.path.insert(0, str(DEPLOY.parent))

from peer.cli import main as main_group  # noqa: E402 - found beside this script, whether installed or not
from peer.core.epochs import PaceRules  # noqa: E402
from peer.core.limits import COUNT_MAX, NUMBER_CONFIGURED_MAX  # noqa: E402
from peer.core.plan import Parameter  # noqa: E402
from peer.daemon.metrics import METRICS  # noqa: E402
from peer.documents.registry import DOCUMENTS  # noqa: E402
from peer.errors import EXIT_CODES  # noqa: E402
from peer.lab.experiments.experiment import Experiment  # noqa: E402
from peer.lab.experiments.experiment_tables import ExperimentData  # noqa: E402
from peer.methods.registry import PLANS  # noqa: E402
from peer.site.config.schema import FederationConfig, PaceConfig, SiteConfig  # noqa: E402
from peer.site.config.site_tables import DataConfig  # noqa: E402
from peer.site.config.toml import table_of  # noqa: E402

PAGE = DEPLOY / "reference.md"
TEMPLATE = DEPLOY.parent / "peer" / "cli" / "site.toml"
"""The site.toml that `site init` fills in: the example."""
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
FILES_LEAD = """\
Every command that writes a file or a folder for you takes `--out`. No command overwrites a file that
is there: it is refused with exit code 6, and the message says to remove it or to name another with
`--out`. A page for a browser may replace an older page. `simulate` goes on in a folder that it began,
and `report` writes its folder anew. The other names are those of earlier releases; they stay.
`backup FILE` is the same as `backup --out FILE`.
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
refused; any other key may be left out, also where it has no default. Counts and seconds are at most
a thousand million.
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
SHARED: Mapping[type, type] = {PaceConfig: PaceRules, Experiment: FederationConfig, ExperimentData: DataConfig}
"""Table -> the class with the meanings of the keys that have no docstring in the table."""
SECTION = re.compile(r"(#?)\[\[?([^\[\]]+)\]\]?$")
KEY = re.compile(r"(#?)([\w.]+) = ")
WIDTH = 120
NAME = "NAME"
"""The part of a key's path that stands for a name that the file's author chooses."""

KeyPath = tuple[str, ...]
Schema = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Write the files; the exit status is 1 if ``--check`` finds one stale, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is stale")
    check = parser.parse_args(arguments).check
    texts = {PAGE: render_page()}
    for name, model in FILES:
        path = DEPLOY / "examples" / name
        texts[path] = commented(path.read_text("utf-8"), model)
    texts[TEMPLATE] = texts[DEPLOY / "examples" / TEMPLATE.name]
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if not check:
            path.write_text(texts[path], "utf-8")
        outcome = "is stale: run python deploy/reference.py" if check else "written"
        print(f"{path.relative_to(DEPLOY.parent)} {outcome}", file=sys.stderr if check else sys.stdout)
    return int(check and bool(stale))


def render_page() -> str:
    parts = [HEAD, "## Exit codes\n", EXIT_CODES_LEAD, exit_codes(), "## Files\n", FILES_LEAD, output_files()]
    parts += ["## JSON\n", JSON_LEAD, *json_documents()]
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


def output_files() -> str:
    """A table of the commands that take ``--out``."""
    rows = {}
    for name, command in commands(main_group):
        for option in command.params:
            if isinstance(option, click.Option) and "--out" in option.opts:
                others = ", ".join(f"`{other}`" for other in option.opts if other != "--out")
                words = "data prepare SET" if name.startswith("data prepare") else name
                rows[words] = (f"`{words}`", option.help or "", others)
    return table(("command", "`--out`", "other names"), rows.values())


def commands(group: click.Group, lead: str = "") -> Iterator[tuple[str, click.Command]]:
    """The words that call each command, and the command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from commands(command, f"{lead}{name} ")
        else:
            yield f"{lead}{name}", command


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
    schema = schema_with_meanings(model)
    yield f"### {file}\n"
    yield table(
        ("key", "type", "default", "meaning"),
        (
            (f"`{'.'.join(path)}`", schema_words(part), default(part, path, required), text.removesuffix("."))
            for path, part, required, text in keys(schema, schema, ())
        ),
    )


def schema_with_meanings(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a file, with the docstring below each key as its description."""
    schema = model.model_json_schema()
    tables = [model]
    for kind in tables:  # grows by the tables within
        inner = (table_of(field.annotation) for field in kind.model_fields.values())
        tables += {table for table in inner if table is not None and table not in tables}
        properties = (schema if kind is model else schema["$defs"][kind.__name__])["properties"]
        for name, text in {**docstrings(SHARED.get(kind, kind)), **docstrings(kind)}.items():
            if name in properties:
                properties[name]["description"] = text
    return schema


def docstrings(kind: type) -> dict[str, str]:
    """The docstring below each annotated attribute of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    texts = {}
    for pair in itertools.pairwise(definition.body):  # type: ignore[attr-defined]
        match pair:
            case (ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text)))):
                texts[name] = " ".join(text.split())
    return texts


def keys(whole: Schema, part: Schema, path: KeyPath, lead: str = "") -> Iterator[tuple[KeyPath, Schema, bool, str]]:
    """Every key of a table and of the tables in it: its path, its schema, whether it is needed, and its meaning.

    A key without a meaning of its own has that of its table, ``lead``.
    """
    for key, value in part["properties"].items():
        text = value.get("description", lead)
        inner_path, inner = inner_table(whole, (*path, key), value)
        if inner is not None:
            yield from keys(whole, inner, inner_path, text)
        else:
            yield (*path, key), value, key in part.get("required", ()), text


def inner_table(whole: Schema, path: KeyPath, value: Schema) -> tuple[KeyPath, Schema | None]:
    """The path and the schema of the table, or of each table, that is the value of a key."""
    while (inner := value.get("additionalProperties", value.get("items"))) and inner is not True:
        path = (*path, NAME) if "additionalProperties" in value else path
        value = inner
    for choice in value.get("anyOf", [value]):
        name = str(choice.get("$ref", "")).rpartition("/")[2]
        if name and "properties" in whole["$defs"][name]:
            return path, whole["$defs"][name]
    return path, None


def described(whole: Schema, part: Schema, path: KeyPath) -> Iterator[tuple[KeyPath, Schema]]:
    """The path and the schema of every key and table with a meaning of its own; of tables by NAME, under each path."""
    for key, value in part["properties"].items():
        inner_path, inner = inner_table(whole, (*path, key), value)
        if "description" in value:
            yield from ((inner_path[:end], value) for end in range(len(path) + 1, len(inner_path) + 1))
        if inner is not None:
            yield from described(whole, inner, inner_path)


def commented(example: str, model: type[BaseModel]) -> str:
    """The example with the meaning of each key above its first line; a key without a meaning keeps its comment."""
    schema = schema_with_meanings(model)
    known = dict(described(schema, schema, ()))
    if model is FederationConfig:
        plan = PLANS[tomllib.loads(example)["method"]["name"]]
        known |= {("method", name): {"description": parameter_words(key)} for name, key in plan.parameters.items()}
    lines: list[str] = []
    comment: list[str] = []
    section: KeyPath = ()
    counts = True  # false in a section that is an example as a whole
    for line in example.splitlines():
        if line.startswith("# "):
            comment.append(line)
            continue
        part, is_example = None, False
        if (match := SECTION.match(line)) is not None:
            add_missing(lines, section, known)
            section, counts = tuple(match[2].replace('"', "").split(".")), not match[1]
            part = take(known, section, len(section))
            is_example = part is not None and (not counts or inner_table(schema, (), part)[1] is None)
        elif (match := KEY.match(line)) is not None:
            path = (*section, *match[2].split("."))
            part = take(known, path, len(section) + 1)
            is_example = part is not None and counts and bool(match[1]) and not shows_default(line[1:], path, part)
        if part is not None:
            comment = comment_of(part, is_example)
        lines += [*comment, line]
        comment = []
    add_missing(lines, section, known)
    return "\n".join([*lines, *comment, ""])


def comment_of(part: Schema, is_example: bool = False) -> list[str]:
    """The meaning of a key as comment lines."""
    text = part["description"].removesuffix(".") + (" (an example)." if is_example else ".")
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def add_missing(lines: list[str], section: KeyPath, known: Mapping[KeyPath, Schema]) -> None:
    """Add the keys of a section that the example lacks, with their defaults."""
    for path, part in known.items():
        if path[:-1] == section and part.get("default") is not None and "$ref" not in str(part):
            end = next(count for count in range(len(lines), 0, -1) if lines[count - 1])
            lines[end:end] = [*comment_of(part), f"#{path[-1]} = {json.dumps(part['default'])}"]


def parameter_words(parameter: Parameter) -> str:
    """The meaning of a method's parameter, and the texts to choose from."""
    choices = ", ".join(json.dumps(choice) for choice in parameter.choices or () if isinstance(choice, str))
    return parameter.meaning[:1].upper() + parameter.meaning[1:] + (f" ({choices})" if choices else "")


def take(known: dict[KeyPath, Schema], path: KeyPath, least: int) -> Schema | None:
    """Remove and return what is known of the path, or of its longest part of at least so many names."""
    for end in range(len(path), least - 1, -1):
        for pattern, part in known.items():
            if len(pattern) == end and all(b in (a, NAME) for a, b in zip(path, pattern, strict=False)):
                for same in [each for each, other in known.items() if other is part]:
                    del known[same]
                return part
    return None


def shows_default(line: str, path: KeyPath, part: Schema) -> bool:
    """Whether the line has the key's default; those of a method are in its plan."""
    (value,) = tomllib.loads(line).values()
    return path[0] in ("method", "stages") or not value or value == part.get("default")


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
    unsaid = (NUMBER_CONFIGURED_MAX, COUNT_MAX)
    bounds = [f"{sign} {part[name]}" for name, sign in BOUNDS.items() if part.get(name, COUNT_MAX) not in unsaid]
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
