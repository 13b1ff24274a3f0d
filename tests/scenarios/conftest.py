"""Reads, plays and writes transcripts of one site: events in, commands out, in the domain's words."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fakes.core_site import Solo, amend, greeting_of, make_rules, of
from peer.core import commands, events
from peer.core.artifacts import Artifact, EvaluationResult, Source
from peer.core.epochs import PaceRules
from peer.core.messages import Heartbeat, Seen, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import to_json
from simulation.audit import Audit

PACE = {field.name for field in dataclasses.fields(PaceRules)}
LEFT_OUT_VALUES: tuple[Any, ...] = (None, "", 0, 0.0, False, [], {}, ())
"""Values that a transcript leaves out."""
LEFT_OUT_KEYS = frozenset({"position", "threads", "device", "origin_generation", "artifact_sha256"})
"""Keys of rows that a transcript leaves out, because they hardly matter or repeat another key."""
NAMES = frozenset({"members", "expelled", "leaving"})
"""Fields of an amendment that name sites."""
MEASUREMENTS = frozenset({"Measured", "MeasurementFailed"})
"""Events that answer an order to measure a lent model."""


class Scenario(Solo):
    """One transcript. ``#`` begins a comment, ``rules`` the site's rules, ``>`` an event with its time.

    This class writes ``turns`` and the ``<`` lines, the commands; it keeps all other lines. Artifacts are
    called ``owner/round`` after the round that consumes them. Fields that an event does not name answer
    the newest order. ``dies_after=KIND`` kills the site after the row of that kind, ``lost=LABEL`` starts
    it again without the file of that artifact.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.labels: dict[str, str] = {}
        self.persisted: list[commands.Persist] = []
        self.messages: set[str] = set()
        self.phases: set[str] = set()
        self.audit = Audit(())

    def play(self) -> str:
        """The transcript with the commands that the site gives today."""
        lines: list[str] = []
        for line in self.text.splitlines():
            if line.startswith(("<", "turns", "*")):
                continue
            lines.append(line)
            if line.startswith("rules "):
                self._set_rules(dict(word.split("=", 1) for word in line.split()[1:]))
                lines.append(self._turns())
            elif line.startswith("> "):
                lines += self._event(shlex.split(line)[1:])
        return "\n".join(lines) + "\n"

    def _set_rules(self, words: Mapping[str, str]) -> None:
        pace: dict[str, Any] = {}
        parameters: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        for key, word in words.items():
            value = self._literal(word)
            if key in PACE:
                pace[key] = value
            elif key in ("site", "sites"):
                fields[key] = word
            elif key == "without":
                fields[key] = frozenset(word.split(","))
            elif key in ("activation", "visits"):
                parameters[key] = value
            else:
                fields[key] = value
        site, sites = fields.pop("site"), fields.pop("sites").split(",")
        self.rules = make_rules(site, sites, pace=PaceRules(**pace), parameters=parameters, **fields)

    def _turns(self) -> str:
        if self.rules.plan.pattern == "all_to_all":
            return "turns every site receives from every other one"
        if self.rules.plan.pattern == "visit":
            rounds = range(1, self.rules.rounds + 1)
            visits = [(self.rules.visitors(round), self.rules.hosts(round)) for round in rounds]
            shown = [f"{round}: of {'+'.join(us)}, at {'+'.join(them)}" for round, (us, them) in enumerate(visits, 1)]
            return f"turns {'; '.join(shown)}"
        turns = []
        for round in range(1, self.rules.rounds + 1):
            slot = self.rules.turn(round)
            where = self.rules.holder(round, slot) if self.rules.pattern(round) == "circulate" else slot
            at = f" at {where}" if where != slot else ""
            turns.append(f"{round}: {'itself' if slot == self.rules.site and not at else slot + at}")
        return f"turns {', '.join(turns)}"

    def _event(self, words: list[str]) -> list[str]:
        self.now_s, name = float(words[0]), words[1]
        named = [word for word in words[2:] if "=" not in word]
        fields = {key: self._literal(word) for key, word in (word.split("=", 1) for word in words[2:] if "=" in word)}
        dies_after, rows_before = fields.pop("dies_after", None), len(self.audit.rows)
        if name in ("Began", "Restarted"):
            self.messages.add("Began")
            out = self.restart(lost=self._artifact(fields["lost"], 0).sha256 if "lost" in fields else None)
        else:
            self.messages.add(name)
            event = self._make(name, named, fields)
            out = self.feed(event)
            if isinstance(event, events.EpochsLearned):
                self.rules = self.rules.amended(event.epochs)
        shown = self._before_death(out, dies_after)
        if len(shown) == len(out):
            self.phases.add(str(self.site.phase))
        self.persisted += of(shown, commands.Persist)
        self.messages |= {type(command).__name__ for command in shown}
        del self.audit.rows[rows_before + len(of(shown, commands.Persist)) :]
        killed = ["* killed here"] if len(shown) < len(out) else []
        return [*(f"< {self._show(command)}" for command in shown), *killed]

    @staticmethod
    def _before_death(out: list[commands.Command], kind: str | None) -> list[commands.Command]:
        """The commands up to the row of a kind."""
        for place, command in enumerate(out, 1):
            if isinstance(command, commands.Persist) and command.kind == kind:
                return out[:place]
        return out

    # Events.

    def _make(self, name: str, named: list[str], fields: dict[str, Any]) -> events.Event:
        if name == "EpochsLearned":
            names = {key: str(value).replace(",", " ") for key, value in fields.items() if key in NAMES}
            return events.EpochsLearned(amend(self.site.rules.epochs, **{"hold": False, **fields, **names}))
        kind: type[events.Event] = getattr(events, name)
        fields = {**self._usual(name, named), **fields}
        for key in ("artifact", "sha256"):
            if isinstance(fields.get(key), str):
                artifact = self._artifact(fields[key], fields.get("trained_steps", 0))
                fields[key] = artifact if key == "artifact" else artifact.sha256
        known = {field.name for field in dataclasses.fields(kind)}
        return kind(**{key: value for key, value in fields.items() if key in known})

    def _usual(self, name: str, named: list[str]) -> dict[str, Any]:
        """The fields of an event that a transcript need not name."""
        memory, order = self.site.memory, self.order
        fields: dict[str, Any] = {"generation": memory.generation, "round": self.site.number}
        if named:
            fields |= {"site": named[0], "origin": named[0]}
        if name.startswith("Artifact") and name != "ArtifactRejected":
            fetch = self.all_fetches.get((named[0], self._purpose()))  # type: ignore[call-overload]
            fetch = self.evaluation_fetches.get(SiteName(named[0])) if "guest" in named else fetch
            named = [word for word in named if word != "guest"]
            if fetch is not None:
                fields |= {"generation": fetch.generation, "round": fetch.round, "attempt": fetch.attempt}
                fields |= {"purpose": fetch.purpose, "true_round": fetch.round, "origin_generation": 1}
                after = "end-of-" if fetch.purpose == "evaluate" else ""
                at = f"-at-{fetch.origin}" if fetch.purpose == "return" else ""
                fields |= {"artifact": f"{fetch.owner}/{after}{fetch.round}{at}"}
            if len(named) > 1:
                fields["answer"] = Unavailable(named[1])
            return fields
        if name == "PeerHeard" and len(named) > 1:
            words = dict(word.split(":") for word in named[2:])
            numbers = {"round": 0, "published_round": 0, "committed_round": 0} | {k: int(v) for k, v in words.items()}
            fields["pulse"] = Heartbeat(1, phase=named[1], **numbers)
        if name == "PeerGreeted":
            seen, part = None, {}
            for word in named[1:]:
                if word in ("takes-no-part", "older-program"):
                    part = {"evaluates": False if word == "takes-no-part" else None}
                else:
                    generation, round = word.removeprefix("saw:").split("/")
                    seen = Seen(int(generation), int(round), "ab" * 32)
            fields["greeting"] = dataclasses.replace(greeting_of(self.rules, 1, seen), **part)
        if name == "ReportAnswered":
            attempt = max(order.attempt for order in self.reports if order.site == named[0])
            return {"site": named[0], "answer": named[1], "attempt": attempt}
        if name == "ReportArrived":
            fields["report"] = self._report(dict(word.split(":") for word in named[1:]))
        if name in MEASUREMENTS:
            assert self.measure_order is not None
            figures = {key: float(value) for key, value in (word.split(":") for word in named)}
            order = {"round": self.measure_order.round, "attempt": self.measure_order.attempt}
            return {**fields, **order, "metrics": figures}
        if order is None or name.startswith("Peer"):
            return fields
        fields |= {"attempt": order.attempt, "threads": 1, "device": "cpu", "samples": {}, "metrics": {}}
        return fields | self._result()

    def _result(self) -> dict[str, Any]:
        """The worker's usual answer to its newest order."""
        order, me, published = self.order, self.rules.site, self.rules.plan.published
        match order:
            case commands.Initialise():
                artifact = f"{me}/1" if published == "commit" else None
                return {"state": "start", "artifact": artifact}
            case commands.Train():
                owner, consumed = order.circulate or me, order.round + (published == "commit")
                visits = self.rules.plan.pattern == "visit"
                given = f"{owner}/{consumed}" if published in (order.stage, "commit") and not visits else None
                copies = [f"{source.artifact.owner}/{order.round}-at-{me}" for source in order.sources]
                steps = 20 + max((source.artifact.steps for source in order.sources), default=0)
                state = order.base if order.circulate else f"{order.stage}-{order.round}"
                return {
                    "stage": order.stage,
                    "state": state,
                    "artifact": given,
                    "trained_steps": steps,
                    "duration_s": 60.0,
                    "returned": tuple(self._artifact(label, steps, kind="return") for label in copies if visits),
                }
            case commands.Aggregate():
                names = sorted({me, *(source.origin for source in order.sources)})
                mean = f"mean-{order.round}"
                given = {"artifact": f"{me}/{order.round + 1}"} if published == "commit" else {}
                return {"state": mean, "contributors": tuple(names), "sha256": mean, **given}
            case commands.Adopt():
                return {"state": "home", "artifact": f"{me}/home"}
            case commands.Evaluate(_, round, _, _, _, lent):
                given = {"artifact": f"{me}/end-of-{round}"} if lent else {}
                return {"metrics": {"auc": 0.9} | ({"samples": 40.0} if lent else {}), **given}
        return {}

    def _purpose(self) -> str:
        exchange = self.site.exchange
        return exchange.purpose if exchange is not None else "train"

    def _report(self, words: dict[str, str]) -> EvaluationResult:
        """A peer's report: ``of:europe/end-of-2 auc:0.7 samples:30``, or ``unmeasured:failed``."""
        label, unmeasured = words.pop("of"), words.pop("unmeasured", "")
        samples = int(words.pop("samples", 0))
        figures = {key: float(value) for key, value in words.items()}
        sha256, round = self._artifact(label, 0).sha256, int(label.rpartition("-")[2])
        return EvaluationResult(self.site.memory.generation, round, sha256, samples, figures, unmeasured)  # type: ignore[arg-type]

    def _artifact(self, label: str, steps: int, *, kind: Any = None) -> Artifact:
        digest = Sha256(hashlib.sha256(label.encode()).hexdigest())
        self.labels[digest] = label
        kind = kind or ("return" if "-at-" in label else self.rules.plan.artifact or "model")
        return Artifact(kind, SiteName(label.split("/")[0]), digest, 100, steps, {})

    @staticmethod
    def _literal(word: str) -> Any:
        try:
            return ast.literal_eval(word.replace("_", "") if word[:1].isdigit() else word)
        except (ValueError, SyntaxError):
            return word

    # Commands.

    def _show(self, command: commands.Command) -> str:
        match command:
            case commands.Persist(kind, round, body):
                shown = {
                    key: value
                    for key, value in body.items()
                    if value not in LEFT_OUT_VALUES and key not in LEFT_OUT_KEYS
                }
                words = [f"{key}={self._word(value)}" for key, value in shown.items()]
                return " ".join([f"Persist {kind} round={round}", *words])
            case commands.Announce():
                pulse = self.site.pulse()
                where = f"round={pulse.round} published={pulse.published_round} committed={pulse.committed_round}"
                return f"Announce {pulse.phase} {where}"
            case commands.Publish(round, artifact, True):
                return f"Publish {self._word(artifact)} for evaluation"
            case commands.Measure(_, round, attempt, source):
                return f"Measure round={round} attempt={attempt} guest={self._word(source)}"
            case commands.SendReport(attempt, site, report):
                return f"SendReport to={site} attempt={attempt}: {self._word(to_json(report))}"
            case commands.Publish(round, artifact):
                return f"Publish {self._word(artifact)} for round={round}"
            case commands.Train(_, round, attempt, stage, base, sources, circulate):
                visitor = f" visitor={circulate}" if circulate else ""
                return f"Train {stage} round={round} attempt={attempt} from={base} with={self._word(sources)}{visitor}"
            case commands.Aggregate(_, round, attempt, base, sources):
                return f"Aggregate round={round} attempt={attempt} from={base} with={self._word(sources)}"
            case commands.Adopt(_, round, attempt, base, source):
                return f"Adopt round={round} attempt={attempt} from={base} with={self._word(source)}"
            case commands.WakeAt(at_s):
                return f"WakeAt {at_s:g}"
            case commands.Fetch(_, round, attempt, origin, kind, purpose, owner):
                artifact = f"{purpose} {kind} of {owner}" if owner != origin else f"{purpose} {kind}"
                return f"Fetch from={origin} round={round} attempt={attempt}: {artifact}"
        fields = dataclasses.fields(command)
        values = {field.name: getattr(command, field.name) for field in fields if field.name != "generation"}
        words = [f"{name}={self._word(value)}" for name, value in values.items() if value not in LEFT_OUT_VALUES]
        return " ".join([type(command).__name__, *words])

    def _word(self, value: Any) -> str:
        """A value in the domain's words."""
        if isinstance(value, Source):
            value = {"origin": value.origin, "fallback": value.fallback, "sha256": value.artifact.sha256}
        if isinstance(value, Artifact):
            return self.labels[value.sha256]
        if isinstance(value, Mapping) and "unmeasured" in value:
            figures = " ".join(f"{key}:{number:g}" for key, number in value["metrics"].items())
            outcome = value["unmeasured"] or f"{figures} of {value['samples']} samples"
            return f"[{self.labels.get(value['sha256'], 'no file')}: {outcome}]"
        if isinstance(value, Mapping):
            digest = value["artifact"]["sha256"] if "origin" in value and "artifact" in value else value.get("sha256")
            if digest is None:
                return ",".join(f"{key}:{self._word(inner)}" for key, inner in value.items())
            label, origin = self.labels[digest], value.get("origin") or value.get("site")
            at = f"@{origin}" if origin and origin != label.split("/")[0] else ""
            return f"{label}{at}" + (f"({value['fallback']})" if value.get("fallback") else "")
        if isinstance(value, list | tuple):
            return ",".join(map(self._word, value)) or "nothing"
        if isinstance(value, float):
            return f"{value:g}"
        return self.labels.get(value, str(value))


@pytest.fixture
def scenario() -> Callable[[str], Scenario]:
    """Reads a transcript."""
    return Scenario
