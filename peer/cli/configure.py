"""``mhfl-peer site configure``: ask for data, network, permissions and ports, try them, and edit site.toml."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from models.spec import HYPER, ONE_DIMENSIONAL, installed_model, suggestion
from peer.cli import output
from peer.cli.check import render_findings
from peer.cli.models import FAMILIES, family
from peer.cli.site_command import SiteCall, site_command
from peer.core.columns import TableColumn
from peer.documents.commands import CheckFinding, ConfigurationChange, SiteConfigured
from peer.errors import CheckFailed, ConfigError, ModelError, StateError, UsageError
from peer.site.config import toml, toml_edit
from peer.site.config.monai_bundle import is_bundle
from peer.site.config.schema import FederationConfig, SiteConfig, check_site
from peer.site.config.site_folder import SiteFolder, write_atomically
from peer.site.config.site_tables import AXIS_OF, check_orientation
from peer.site.config.value_types import MODEL_NAME
from peer.site.membership.folder import MembershipFolder
from peer.train.data.datalist import inspect_datalist
from peer.view.preflight.proposals import neighbours_ports, propose_address, propose_input_size, propose_scale

LAYERS = (sys.executable, "-P", "-m", "peer.cli", "models", "--json", "--layers")
"""Run as a separate process, because it imports torch, and a network's class from outside this package."""
LAYERS_S = 300.0
"""Long enough to import torch from a slow disk and run one image through a large network."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
OF_FORMER_NETWORK = ("features", "head", "weights", "weights_sha256", "freeze")
"""Keys of ``[model]`` that do not carry over to another network."""
VALIDATION_SHARE = 0.2
"""The share to propose, that of a fold among five."""
SIZE = re.compile(r"[1-9][0-9]*([x, ]+[1-9][0-9]*)*")

Check = Callable[[Any], Any]
"""Returns the value for site.toml; raises ``ValueError`` with the reason and remedy if it refuses the answer."""


@dataclass
class Interview:
    """The answers from ``--set``, proposals and a person, by dotted key of site.toml.

    A key whose answer is None is removed. With ``--json``, questions go to standard error, since standard output holds
    the document.
    """

    document: Mapping[str, Any]
    given: Mapping[str, Any]
    takes_proposals: bool
    to_stderr: bool
    answers: dict[str, Any]

    def current(self, key: str) -> Any:
        """Return the answer so far, or else the file's value."""
        return self.answers[key] if key in self.answers else toml_edit.find(self.document, key)

    def say(self, text: str) -> None:
        click.echo(text, err=self.to_stderr)

    def ask(self, key: str, question: str, proposal: Any, check: Check) -> Any:
        """Ask until an answer is accepted; raise ``UsageError`` if nobody can be asked again."""
        name = "[{}] {}".format(*key.split(".")) if "." in key else key
        if key in self.given or self.takes_proposals:
            value = self.given.get(key, proposal)
            if value is None:
                raise UsageError(f"{name} has no value and no proposal", f"give --set {key}=VALUE")
            try:
                self.answers[key] = check(value)
            except ValueError as error:
                raise UsageError(f"{key} = {_show(value)}: {error}", f"give --set {key}=VALUE") from error
            return self.answers[key]
        default = None if proposal is None else _show(proposal)
        self.say(f"\n{question}")
        while True:
            text = click.prompt(name, default=default, err=self.to_stderr)
            try:
                self.answers[key] = check(_parse_value(text))
            except ValueError as error:
                self.say(f"  {error}")
            else:
                return self.answers[key]


def complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the keys of site.toml, including the equals sign."""

    def keys(table: Any, prefix: str) -> list[str]:
        inner = {name: toml.table_of(field.annotation) for name, field in table.model_fields.items()}
        return [
            key
            for name, below in inner.items()
            for key in (keys(below, f"{prefix}{name}.") if below is not None else [f"{prefix}{name}="])
        ]

    return [key for key in keys(SiteConfig, "") if key.startswith(incomplete)]


@site_command(short_help="Ask for data, network and ports, try them, and edit site.toml.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=complete_key,
    help="Set a key, as data.datalist=list.json; repeatable.",
)
@click.option("--yes", "takes_proposals", is_flag=True, help="Ask nothing: take every proposal, and write.")
@click.option("--no-try", "tries", is_flag=True, flag_value=False, default=True, help="Write without trying a step.")
def configure(call: SiteCall, settings: tuple[str, ...], takes_proposals: bool, tries: bool) -> None:
    """Ask for datalist, input size, normalisation, validation share, network, ports and, where the
    federation needs them, permissions; show the change of site.toml, try it as `check` does, and
    write it.

    Each question has a proposal: from the file, from the images that the datalist names, from the
    layers of the network, or a port that is free. Comments and order of the file stay. With --yes
    nothing is asked, and no permission given; --set gives the answers. A change whose trial fails
    is not written, unless a person says so.

    \b
    mhfl-peer site configure --site europe
    mhfl-peer site configure --set data.datalist=/data/datalist.json --set model.name=resnet18 --yes
    """
    folder = call.folder
    path = folder.site_toml
    if not path.exists():
        raise ConfigError(
            f"{path} is missing", f"`mhfl-peer site init --federation {folder.federation_toml}` writes it"
        )
    federation = FederationConfig.load(folder.federation_toml)
    text = toml.read(path)
    document = toml.parse(text, str(path))
    interview = Interview(document, _parse_settings(settings), takes_proposals, call.as_json, {})
    interview.answers.update(interview.given)
    try:
        _ask_all(interview, folder, federation)
        new = toml_edit.edit(text, interview.answers)
        site = SiteConfig.parse(new, path)
        newcomers = MembershipFolder(folder.membership).newcomers(federation, folder.site)
        check_site(federation, site, folder.site, newcomers=newcomers)
        result = _write(interview, folder, federation, site, text, new, tries=tries)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise UsageError(
            "standard input ended before every question had an answer; nothing is written",
            "give the answers with --set KEY=VALUE and --yes",
        ) from None
    call.emit(result, _render)
    failures = [finding for finding in result["findings"] if finding["verdict"] == "failure"]
    if failures and not result["written"]:
        raise CheckFailed(f"{failures[0]['subject']}: {failures[0]['message']}", failures[0]["remedy"])


def _ask_all(interview: Interview, folder: SiteFolder, federation: FederationConfig) -> None:
    _ask_data(interview, folder, federation)
    _ask_preparation(interview, folder, federation)
    _ask_model(interview, folder, federation)
    _ask_policy(interview, federation)
    _ask_ports(interview, folder)


def _ask_policy(interview: Interview, federation: FederationConfig) -> None:
    """Ask for permissions that the federation counts on; --yes alone gives none that the file does not have."""
    tells = 'weighting = "samples"' if federation.weighting == "samples" else f"the sums of {federation.method.name}"
    if federation.weighting == "samples" or federation.plan.artifact == "sums":
        interview.ask(
            "egress.training_set_size",
            f"{tells} in federation.toml: may the others learn how many samples this site trains on?",
            interview.current("egress.training_set_size"),
            lambda value: _one_of(value, (True,), "the federation needs true"),
        )
    if federation.global_test and federation.plan.evaluation_denied is None:
        permitted = interview.current("egress.evaluate")
        if permitted is None and interview.takes_proposals:
            interview.say(
                "note: global_test needs this site's permission: --set egress.evaluate=true, if it may be given"
            )
            return
        interview.ask(
            "egress.evaluate",
            "global_test = true in federation.toml: may the other sites measure this site's model on their test "
            "samples, and read what theirs reach on the samples here?",
            True if permitted is None else permitted,
            lambda value: _one_of(value, (True, False), "write true or false"),
        )


# --- data ------------------------------------------------------------------------------------------------------------
def _ask_data(interview: Interview, folder: SiteFolder, federation: FederationConfig) -> None:
    from peer.train.data.survey import survey

    task, ask = federation.task, interview.ask
    root = interview.current("data.root")
    sizes: dict[str, Any] = {"root": folder.path / _locate(folder, root) if root is not None else None}
    sizes |= task.labelling()

    def datalist(value: Any) -> str:
        located = _locate(folder, value)
        listed = inspect_datalist(folder.path / located, **sizes)
        if not listed.training and not listed.test:
            raise ValueError(listed.problems[0] if listed.problems else "it names no sample")
        return located

    if root is not None:
        interview.answers["data.root"] = _locate(folder, root)
    former = interview.current("data.datalist")
    path = ask("data.datalist", "The datalist of this site's samples", former or "datalist.json", datalist)
    if federation.plan.public:
        ask("data.public", f"The datalist of {federation.method.name}'s public set", interview.current("data.public"),
            lambda value: _public_datalist(folder, value, sizes["columns"]))  # fmt: skip
    with output.working("reading the headers of the images"):
        surveyed = survey(folder.path / path, **sizes)
    notes = [*surveyed["problems"], *surveyed["warnings"]]
    for note in notes:
        interview.say(f"note: {note}")
    if task.kind == "tabular":  # whose columns say all that there is to prepare
        return
    orientation = interview.current("data.orientation")
    if task.spatial_dims == len(AXIS_OF) // 2:
        seen = _describe_counts(surveyed, "orientations")
        question = f'Directions to which volumes are turned: "RAS", another three, or "stored" (the files: {seen})'
        orientation = ask("data.orientation", question, orientation or "RAS", check_orientation)
    if task.kind == "super_resolution":
        scale = interview.current("data.scale") or propose_scale(surveyed)
        ask("data.scale", "How many times larger the target is than the image: 2, 4 or 8", scale,
            lambda value: _one_of(value, (2, 4, 8), "take 2, 4 or 8"))  # fmt: skip
    proposal = propose_input_size(
        cast(Mapping[str, Any], surveyed),
        dims=task.spatial_dims, in_channels=task.in_channels, orientation=orientation,
    )  # fmt: skip
    size = interview.current("data.input_size")
    chosen_before = path == former and size is not None and not _is_template_size(size)
    question = f"The size to which each sample is brought (the files: {_describe_counts(surveyed, 'shapes')})"
    fits = isinstance(size, list) and len(size) == task.spatial_dims
    ask("data.input_size", question, size if fits and (chosen_before or proposal is None) else proposal,
        lambda value: _input_size(value, task.spatial_dims))  # fmt: skip


def _ask_preparation(interview: Interview, folder: SiteFolder, federation: FederationConfig) -> None:
    """Ask how images are scaled and how many are held out; a site that has begun is offered what it trains with."""
    begun = bool(folder.generations())
    if federation.task.kind not in ("super_resolution", "tabular"):
        usual = "none" if begun or interview.current("data.intensity") else "zscore"
        interview.ask(
            "data.normalise",
            'How an image\'s values are scaled: "zscore" (mean 0, deviation 1), "unit" (from 0 to 1), or "none"',
            interview.current("data.normalise") or usual,
            lambda value: _one_of(value, ("none", "zscore", "unit"), "take zscore, unit or none"),
        )
    share = interview.current("data.validation_share")
    interview.ask(
        "data.validation_share",
        "The share of training samples to hold out, by which the best round is chosen (`predict --round best`)",
        share if share is not None else 0.0 if begun else VALIDATION_SHARE,
        _share,
    )


def _share(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise ValueError("write a share such as 0.2, or 0 to hold out none")
    return float(value)


def _is_template_size(size: Any) -> bool:
    from peer.cli.template import SIZES

    return json.dumps(size) in SIZES.values()


def _locate(folder: SiteFolder, value: Any) -> str:
    """Return a path as site.toml stores it: relative to the file's folder if it exists there, else absolute.

    A person types paths relative to the working directory.
    """
    path = Path(str(value)).expanduser()
    return str(path if (folder.path / path).exists() or not path.exists() else path.absolute())


def _public_datalist(folder: SiteFolder, value: Any, columns: Sequence[TableColumn]) -> str:
    located = _locate(folder, value)
    if problems := inspect_datalist(folder.path / located, columns=columns, with_labels=False).problems:
        raise ValueError(problems[0])
    return located


def _input_size(value: Any, dims: int) -> list[int]:
    if isinstance(value, int):
        value = [value]
    if isinstance(value, str) and SIZE.fullmatch(value.strip("[] ")):
        value = [int(side) for side in re.findall("[0-9]+", value)]
    if not isinstance(value, list) or not all(type(side) is int and side > 0 for side in value):
        raise ValueError("write the sides as " + "x".join(["64"] * dims))
    if len(value) != dims:
        raise ValueError(f"{len(value)} sides, and [task] spatial_dims is {dims}; write " + "x".join(["64"] * dims))
    return value


def _one_of(value: Any, allowed: Sequence[Any], reason: str) -> Any:
    if value not in allowed or type(value) is not type(allowed[0]):  # 1 equals True
        raise ValueError(reason)
    return value


def _describe_counts(surveyed: Any, key: str) -> str:
    """List the most frequent values in both splits, each with its number of files."""
    counts: dict[str, int] = {}
    for split in surveyed["splits"].values():
        for name, count in split[key].items():
            counts[name] = counts.get(name, 0) + count
    frequent = sorted(counts.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} ({count})" for name, count in frequent[:3])
    return shown + (f", and {len(frequent) - 3} others" if len(frequent) > 3 else "") or "say none"


# --- the network -----------------------------------------------------------------------------------------------------
def _ask_model(interview: Interview, folder: SiteFolder, federation: FederationConfig) -> None:
    shared = federation.shared_model
    if shared is not None and federation.plan.shared != "beside":
        interview.say(f"note: {federation.method.name} trains [shared_model] of federation.toml, {shared.name}")
        interview.answers["model.name"] = shared.name
        interview.answers |= dict.fromkeys(_keys(interview.document, "model.parameters"), None)
        interview.answers |= {f"model.parameters.{key}": value for key, value in shared.__pydantic_extra__.items()}
        return
    task = federation.task
    names = tuple(
        name
        for name in HYPER
        if family(name) in FAMILIES[task.kind]
        and not name.startswith("messenger_")
        and (task.spatial_dims == 1 or name not in ONE_DIMENSIONAL)
    )
    current = toml_edit.find(interview.document, "model.name") or "resnet10"
    elsewhere = "monai.networks.nets.NAME, package.module:Class, or a MONAI bundle's folder"
    question = f"The network: {', '.join(names)}; or {elsewhere}"
    proposal = current if current in names or current not in HYPER else names[0]
    answer = interview.ask("model.name", question, proposal, lambda value: _network(folder, str(value), names))
    bundle = is_bundle(folder.path / answer)
    if answer != current or bundle:
        former = [f"model.{key}" for key in OF_FORMER_NETWORK] + _keys(interview.document, "model.parameters")
        interview.answers |= {key: None for key in former if interview.current(key) and key not in interview.given}
    own_taps = answer in HYPER or bool(installed_model(answer))
    if not own_taps and (bundle or interview.current("model.head") is None):
        layers = _read_layers(folder, federation, interview, answer)
        take_layers(interview, layers, folder.path / answer if bundle else None)
    if task.kind == "super_resolution" and "scale" in HYPER.get(answer, ()):
        interview.answers["model.parameters.scale"] = interview.current("data.scale")


def _network(folder: SiteFolder, value: str, names: Sequence[str]) -> str:
    located = _locate(folder, value)
    if is_bundle(folder.path / located):
        return located
    if value in names or installed_model(value):
        return value
    if value in HYPER:
        raise ValueError(f"{value} is for {family(value)}; take one of {', '.join(names)}")
    if not MODEL_NAME.fullmatch(value) or not ("." in value or ":" in value):
        raise ValueError(
            f"no network has this name{suggestion(value, names)}; `mhfl-peer models` lists those for the task"
        )
    return value


def _read_layers(
    folder: SiteFolder, federation: FederationConfig, interview: Interview, name: str
) -> Mapping[str, Any]:
    """Return the document of `models --layers`, run in a separate process."""
    task, size = federation.task, interview.current("data.input_size")
    words = [*LAYERS, str(folder.path / name) if is_bundle(folder.path / name) else name]
    words += ["--input-size", "x".join(map(str, size)), "--in-channels", str(task.in_channels)]
    words += ["--classes", str(task.classes)]
    for key in {**dict.fromkeys(_keys(interview.document, "model.parameters")), **interview.answers}:
        if key.startswith("model.parameters.") and (value := interview.current(key)) is not None:
            words += ["--set", f"{key.removeprefix('model.parameters.')}={json.dumps(value)}"]
    try:
        with output.working(f"running one image through {name}"):
            done = subprocess.run(words, capture_output=True, text=True, timeout=LAYERS_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"model.name = {name}: its layers were not listed within {LAYERS_S:.0f} s") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        reason = reason.removeprefix("mhfl-peer: ").removesuffix(f"; {UsageError.usual_remedy}")
        reason = reason.replace("--set ", "--set model.parameters.")  # the options of this command
        raise ModelError(f"model.name = {name}: {reason}", "take another network, or give --set model.parameters.KEY")
    return cast(Mapping[str, Any], json.loads(done.stdout))


def take_layers(interview: Interview, layers: Mapping[str, Any], bundle: Path | None) -> None:
    """Answer ``features``, ``head`` and, for a bundle, everything that it states about its network."""
    proposals: dict[str, Any] = {"model.features": layers["features"] or None, "model.head": layers["head"]}
    if bundle is not None:
        interview.answers["model.name"] = layers["name"]
        hyper = {key: value for key, value in layers["hyper"].items() if value is not None}
        proposals |= {f"model.parameters.{key}": value for key, value in hyper.items()}
        if layers["weights"]:
            proposals |= {"model.weights": str(bundle), "model.weights_sha256": layers["weights_sha256"]}
    interview.answers |= {key: value for key, value in proposals.items() if key not in interview.given}
    if interview.current("model.head") is None:
        raise ModelError(
            f"[model] head: no layer of {layers['name']} can be proposed: {layers['problem']}",
            "give --set model.head=LAYER; `mhfl-peer models --layers` lists the layers",
        )


def _keys(document: Mapping[str, Any], table: str) -> list[str]:
    """List the dotted keys of a table in the file."""
    return [f"{table}.{key}" for key in toml_edit.find(document, table) or ()]


# --- ports -----------------------------------------------------------------------------------------------------------
def _ask_ports(interview: Interview, folder: SiteFolder) -> None:
    if folder.holder() is not None:
        interview.say("note: a daemon runs, and has its ports; the change holds from its next start")
        return
    taken = neighbours_ports(folder)
    for key, question in (
        ("listen", "Where the daemon listens for the other sites"),
        ("metrics.listen", "Where Prometheus may ask"),
    ):
        current = interview.current(key) or ("127.0.0.1:7443" if key == "listen" else None)
        if current is None:
            continue
        try:
            proposal = propose_address(str(current), taken)
        except ValueError:  # the file's value is not an address
            proposal = None
        if proposal != current:
            question += f" ({current} is taken on this machine)"
        if key == "listen" and proposal not in (None, current):
            question += "; the others dial the roster's port, so tell them the new one"
        address = interview.ask(key, question, proposal, _address)
        taken.add(toml.split_address(address)[1])


def _address(value: Any) -> str:
    toml.split_address(str(value))
    return str(value)


# --- the file --------------------------------------------------------------------------------------------------------
def _write(
    interview: Interview,
    folder: SiteFolder,
    federation: FederationConfig,
    site: SiteConfig,
    text: str,
    new: str,
    *,
    tries: bool,
) -> SiteConfigured:
    """Show the change, ask for consent, try it, and write it; return what was done."""
    path, asks = folder.site_toml, not interview.takes_proposals
    diff = "\n".join(
        difflib.unified_diff(text.splitlines(), new.splitlines(), f"{path}", f"{path} (configured)", lineterm="")
    )
    interview.say(diff or f"{path} needs no change")
    result: SiteConfigured = {
        "site": folder.site,
        "site_toml": str(path),
        "changes": _changes(tomllib.loads(text), tomllib.loads(new), interview.answers),
        "diff": diff,
        "tried": False,
        "findings": [],
        "written": False,
    }
    if diff and asks and not click.confirm("Take this change?", default=True, err=interview.to_stderr):
        return result
    running = folder.holder() is not None
    if tries and not running:
        result["tried"] = True
        result["findings"] = _try(folder, federation, site)
        if not interview.to_stderr:
            output.console().print(render_findings(result))
    failed = any(finding["verdict"] == "failure" for finding in result["findings"])
    if failed and diff:
        interview.say(f"The trial failed; {path} is as it was.")
        if not asks or not click.confirm("Write the change all the same?", default=False, err=interview.to_stderr):
            return result
    if diff:
        _replace(path, text, new)
        result["written"] = True
    return result


def _try(folder: SiteFolder, federation: FederationConfig, site: SiteConfig) -> list[CheckFinding]:
    """Run the parts of `check` about data and a training step; return their findings."""
    from peer.view.preflight.local import check_packages

    findings = list(check_packages())
    if not findings:
        from peer.view.preflight.check import try_configuration

        with output.working("trying a step of each stage, about a minute"):
            findings = list(try_configuration(folder, federation, site))
    return [cast(CheckFinding, dataclasses.asdict(finding)) for finding in findings]


def _replace(path: Path, text: str, new: str) -> None:
    """Write the file through a symbolic link, keeping its mode; raise ``StateError`` if another program changed it."""
    path = path.resolve()
    status = path.stat()
    content = path.read_bytes()
    mark = BYTE_ORDER_MARK if content.startswith(BYTE_ORDER_MARK) else b""
    if content.removeprefix(mark) != text.encode():
        raise StateError(f"{path} was changed meanwhile; nothing is written", "run the command again")
    write_atomically(path, mark + new.encode(), stat.S_IMODE(status.st_mode))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], keys: Mapping[str, Any]) -> list[ConfigurationChange]:
    values = [(key, toml_edit.find(before, key), toml_edit.find(after, key)) for key in keys]
    return [{"key": key, "before": old, "after": value} for key, old, value in values if old != value]


def _render(result: Mapping[str, Any]) -> output.RenderableType:
    if result["written"]:
        then = "`mhfl-peer check`, which also calls the peers"
        return output.fields((("written", result["site_toml"]), ("next", then)))
    return output.fields((("unchanged", result["site_toml"]),))


# --- values ----------------------------------------------------------------------------------------------------------
def _parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse ``--set`` into values by dotted key; raise ``UsageError`` for a key that site.toml does not have."""
    given = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not text:
            raise UsageError(f"--set {setting}: write KEY=VALUE", "such as --set data.datalist=/data/datalist.json")
        table: Any = SiteConfig
        for depth, part in enumerate(key.split(".")):
            if table is None:  # a table with free keys, such as [model.parameters]
                break
            if part not in table.model_fields:
                where = f"[{'.'.join(key.split('.')[:depth])}]" if depth else "site.toml"
                hint = toml.suggestion(part, table.model_fields)
                raise UsageError(f"--set {setting}: {where} has no key {part!r}{hint}", "correct the key")
            table = toml.table_of(table.model_fields[part].annotation)
        given[key] = _parse_value(text)
    return given


def _parse_value(text: str) -> Any:
    """Parse a TOML value, or return the text itself, which a shell passes without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
