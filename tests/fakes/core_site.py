"""One site's state machine, driven by hand: the test plays its peers and its worker."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from peer.core import commands, events
from peer.core.artifacts import Artifact, EvaluationResult
from peer.core.epochs import Epochs, PaceRules
from peer.core.machine import SiteMachine
from peer.core.messages import Heartbeat, Hello, Seen, Unavailable
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import Rules
from peer.core.site_memory import Row, recover
from peer.methods.registry import PLANS
from simulation.audit import Audit, as_stored

KEY = RoundKey(bytes(range(32)))
FEDERATION = Sha256("fe" * 32)


def make_rules(site: str, sites: Sequence[str], **changes: Any) -> Rules:
    """Rules of a small federation with short waits."""
    fields: dict[str, Any] = {
        "site": SiteName(site),
        "roster": Roster.of(sites),
        "federation": FEDERATION,
        "round_key": KEY,
        "method": "fedskd",
        "rounds": 4,
        "pace": PaceRules(linger_s=60.0),
        **changes,
    }
    return Rules(plan=PLANS[fields["method"]], **fields)


def make_artifact(owner: str, text: str, *, steps: int = 0, kind: Any = "model") -> Artifact:
    """An artifact whose digest is that of the text."""
    digest = Sha256(hashlib.sha256(text.encode()).hexdigest())
    return Artifact(kind, SiteName(owner), digest, len(text), steps, {"name": "net"})


def amend(epochs: Epochs, from_round: int = 1, *, leaving: str = "", **changes: Any) -> Epochs:
    """The epochs with one more amendment, or with notices alone; sites are names in one text."""
    if leaving:
        return dataclasses.replace(epochs, leaving=epochs.leaving | set(map(SiteName, leaving.split())))
    head, number = epochs.head, epochs.head.number + 1
    changes["members"] = tuple(map(SiteName, changes.get("members", " ".join(head.members)).split()))
    changes["expelled"] = head.expelled | set(map(SiteName, changes.get("expelled", "").split()))
    digest = Sha256(f"{number:064x}")
    epoch = dataclasses.replace(head, number=number, digest=digest, from_round=from_round, **changes)
    return dataclasses.replace(epochs, all=(*epochs.all, epoch))


def of(out: Iterable[commands.Command], *kinds: type[commands.Command]) -> list[Any]:
    """The commands of these kinds."""
    return [command for command in out if isinstance(command, kinds)]


def discarded(out: Iterable[commands.Command]) -> list[str]:
    """The digests of the artifacts that a site discards."""
    return [command.sha256 for command in of(out, commands.Discard)]


def persisted(out: Iterable[commands.Command]) -> list[str]:
    """The kinds of the rows that a site writes."""
    return [command.kind for command in of(out, commands.Persist)]


def greeting_of(rules: Rules, generation: int, seen: Seen | None = None) -> Hello:
    """The greeting of a site with these rules."""
    evaluates = rules.evaluation_denied is None if rules.global_test else None
    return Hello(1, FEDERATION, rules.roster.digest, generation, 0.0, seen, evaluates=evaluates)


WORKER_ORDERS = (
    *(commands.Initialise, commands.Train, commands.Aggregate, commands.Adopt, commands.Evaluate),
    commands.Halt,
)


def carry_out(order: commands.Command, rules: Rules) -> Any:
    """The worker's answer to an order: every digest and state is that of a text that says what it was made from."""
    me, planned, kind = rules.site, rules.plan.published, rules.plan.artifact or "model"
    used = "+".join(source.artifact.sha256 for source in getattr(order, "sources", ()))
    match order:
        case commands.Initialise(generation, attempt):
            initial = make_artifact(me, f"initial {me}", kind=kind)
            given = initial if planned == "commit" else None
            return events.Initialised(generation, attempt, initial.sha256, given, {"train": 7}, 1, "cpu")
        case commands.Train(generation, round, attempt, stage, base, sources, circulate):
            steps = max((source.artifact.steps for source in sources), default=0) + 1
            text = f"{me} {round} {stage} {base} {used}"
            if circulate:
                assert [source.artifact.owner for source in sources] == [circulate]
                text = f"{circulate} {round} {used} at {me}"
            trained = make_artifact(circulate or me, text, steps=steps, kind=kind)
            visits = rules.plan.pattern == "visit"
            given = trained if planned in (stage, "commit") and not visits else None
            returned = tuple(
                make_artifact(visitor.owner, f"{visitor.sha256} {round} at {me}", kind="return")
                for visitor in (source.artifact for source in (sources if visits else ()))
            )
            state = base if circulate else trained.sha256
            return events.Trained(generation, round, attempt, stage, state, given, {}, 1, 1.0, returned)
        case commands.Aggregate(generation, round, attempt, base, sources):
            own = () if order.shadow else (me,)
            names = tuple(sorted({*own, *(source.origin for source in sources)}))
            mean, merged = (
                make_artifact(me, f"{round} {names}").sha256,
                make_artifact(me, f"mean {base} {used}", kind=kind),
            )
            given = merged if planned == "commit" else None
            return events.Aggregated(generation, round, attempt, merged.sha256, mean, names, artifact=given)
        case commands.Adopt(generation, round, attempt, _, source):
            home = make_artifact(me, f"home {source.artifact.sha256}", steps=source.artifact.steps, kind=kind)
            return events.Adopted(generation, round, attempt, home.sha256, home)
        case commands.Evaluate(generation, round, attempt, base, _, lent):
            model = make_artifact(me, f"{me} after {round} {base}") if lent else None
            figures = {"auc": 0.5, "samples": 30.0} if lent else {"auc": 0.5}
            return events.Evaluated(generation, round, attempt, figures, model)
        case commands.Halt(generation, attempt):
            return events.Halted(generation, attempt)
    raise AssertionError(f"no order to answer: {order}")


class Solo:
    """One site driven by hand: the test plays its peers and its worker."""

    def __init__(self, rules: Rules, rows: Sequence[Row] = ()) -> None:
        self.rules = rules
        self.now_s = 1000.0
        self.audit = Audit(())
        self.restart(rows)

    def restart(self, rows: Sequence[Row] | None = None, *, lost: Sha256 | None = None) -> list[commands.Command]:
        """Kill the site and start it again on its journal, or on other rows; one file may be lost."""
        rows = self.audit.rows if rows is None else [as_stored(row) for row in rows]
        present = recover(rows).needed_digests() - {lost}
        self.audit = Audit(rows)
        self.audit.memory = recover(rows, present=present)
        self.site = SiteMachine(self.rules, recover(rows, present=present))
        self.order: Any = None
        self.all_fetches: dict[tuple[SiteName, str], commands.Fetch] = {}
        self.evaluation_fetches: dict[SiteName, commands.Fetch] = {}
        self.wake_s: float | None = None
        self.measure_order: commands.Measure | None = None
        self.reports: list[commands.SendReport] = []
        return self.feed(events.Began())

    def begin(self, *names: str, **greeting: Any) -> Solo:
        """The worker makes the initial model, and peers greet, all if none is named; returns the site."""
        self.finish()
        self.greet(*names, **greeting)
        return self

    def feed(self, event: events.Event, *, crash_after: int | None = None) -> list[commands.Command]:
        """Handle an event; returns the commands. ``crash_after`` kills the site after so many of them."""
        rows_before = len(self.audit.rows)
        out = self.site.handle(event, now_s=self.now_s)
        self.audit.check(self.site, out, self.now_s)
        if crash_after is not None:
            persisted = sum(isinstance(command, commands.Persist) for command in out[:crash_after])
            return self.restart(self.audit.rows[: rows_before + persisted])
        for command in out:
            if isinstance(command, WORKER_ORDERS):
                self.order = command
            elif isinstance(command, commands.Fetch):
                if command.purpose == "evaluate":
                    self.evaluation_fetches[command.origin] = command
                else:
                    self.all_fetches[command.origin, command.purpose] = command
            elif isinstance(command, commands.CancelFetch):
                if command.purpose == "evaluate":
                    self.evaluation_fetches.pop(command.origin, None)
                else:
                    self.all_fetches.pop((command.origin, command.purpose), None)
            elif isinstance(command, commands.Measure):
                self.measure_order = command
            elif isinstance(command, commands.Dismiss):
                self.measure_order = None
            elif isinstance(command, commands.SendReport):
                self.reports.append(command)
            elif isinstance(command, commands.WakeAt):
                self.wake_s = command.at_s
        return out

    @property
    def fetches(self) -> dict[SiteName, commands.Fetch]:
        """The fetches of the open exchange, or else those of the next one, by origin."""
        current = self.site.exchange or next(iter(self.site.early), None)
        asked = (current.round, current.purpose) if current is not None else None
        return {fetch.origin: fetch for fetch in self.all_fetches.values() if (fetch.round, fetch.purpose) == asked}

    def _answered(self, origin: str) -> commands.Fetch:
        order = self.fetches[SiteName(origin)]
        return self.all_fetches.pop((order.origin, order.purpose))

    def wait(self, seconds: float) -> list[commands.Command]:
        """Let time pass, with a tick at every time that the site asked for."""
        end_s, out = self.now_s + seconds, []
        for _ in range(100):
            if self.wake_s is None or self.wake_s > end_s:
                break
            self.now_s, self.wake_s = self.wake_s, None
            out += self.feed(events.Ticked())
        else:
            raise AssertionError("the clock rings without end")
        self.now_s = end_s
        return out

    def greet(
        self, *names: str, seen: Seen | None = None, generation: int = 1, evaluates: bool | None = None
    ) -> list[commands.Command]:
        """Peers greet, all if none is named. Like this site, they accept evaluation or do not."""
        out = []
        for name in names or self.rules.others:
            greeting = greeting_of(self.rules, generation, seen)
            if evaluates is not None:
                greeting = dataclasses.replace(greeting, evaluates=evaluates)
            out += self.feed(events.PeerGreeted(SiteName(name), greeting))
        return out

    def examine(self, **figures: float) -> list[commands.Command]:
        """The evaluation process measures the model of the newest order."""
        assert self.measure_order is not None
        order, self.measure_order = self.measure_order, None
        return self.feed(events.Measured(order.generation, order.round, order.attempt, figures or {"samples": 20.0}))

    def answer(self, answer: Any = "taken", reason: str = "") -> list[commands.Command]:
        """The origin answers the oldest report."""
        order = self.reports.pop(0)
        return self.feed(events.ReportAnswered(order.attempt, order.site, answer, reason))

    def report(self, name: str, round: int, artifact: Artifact | None, **changes: Any) -> list[commands.Command]:
        """A peer reports on this site's model."""
        figures: dict[str, Any] = {"samples": 20, "metrics": {"auc": 0.75}} if not changes.get("unmeasured") else {}
        sha256 = artifact.sha256 if artifact is not None else None
        report = EvaluationResult(**{"generation": 1, "round": round, "sha256": sha256, **figures, **changes})
        return self.feed(events.ReportArrived(SiteName(name), report))

    def beat(self, name: str, round: int = 0, phase: str = "train", published: int = 0) -> list[commands.Command]:
        """A peer sends a heartbeat."""
        return self.feed(events.PeerHeard(SiteName(name), Heartbeat(1, round, phase, 0.0, published, round)))

    def prove(self, *names: str, round: int) -> list[commands.Command]:
        """The signatures of these peers show that they have published for this round."""
        return [command for name in names for command in self.feed(events.RoundProved(SiteName(name), round))]

    def lend(self, origin: str, *, crash_after: int | None = None, **changes: Any) -> list[commands.Command]:
        """The lent model that the site fetches arrives from this origin."""
        order = self.evaluation_fetches.pop(SiteName(origin))
        artifact = make_artifact(order.owner, f"{order.owner} after {order.round}")
        return self._arrive(order, crash_after, {"artifact": artifact, **changes})

    def deliver(self, origin: str, *, crash_after: int | None = None, **changes: Any) -> list[commands.Command]:
        """The artifact that the site fetches arrives from this origin; ``changes`` are fields of the event."""
        return self._arrive(self._answered(origin), crash_after, changes)

    def _arrive(
        self, order: commands.Fetch, crash_after: int | None, changes: dict[str, Any]
    ) -> list[commands.Command]:
        by = f" by {order.origin}" if order.kind == "return" else ""
        fields: dict[str, Any] = {
            "generation": order.generation,
            "round": order.round,
            "attempt": order.attempt,
            "origin": order.origin,
            "origin_generation": 1,
            "true_round": order.round,
            "purpose": order.purpose,
            "artifact": make_artifact(order.owner, f"{order.owner} for {order.round}{by}", kind=order.kind),
        }
        event = events.ArtifactArrived(**{**fields, **changes})
        return self.feed(event, crash_after=crash_after)

    def deliver_all(self) -> list[commands.Command]:
        """Everything that the site fetches for this exchange arrives; returns what follows from the last."""
        return [self.deliver(origin) for origin in list(self.fetches)][-1]

    def reject(
        self,
        sha256: str,
        *,
        origin: str = "asia",
        reason: str = "3 values are not finite",
        lost: bool = False,
        short: bool = False,
    ) -> list[commands.Command]:
        """The worker finds an artifact unusable, or its file gone, or has too little memory to read it."""
        order = (self.order.generation, self.order.round, self.order.attempt)
        reason = "its file is gone" if lost else reason
        return self.feed(events.ArtifactRejected(*order, SiteName(origin), Sha256(sha256), reason, lost, short))

    def learn(self, from_round: int = 1, **changes: Any) -> list[commands.Command]:
        """The site learns of one more amendment; see ``amend``."""
        out = self.feed(events.EpochsLearned(amend(self.site.rules.epochs, from_round, **changes)))
        self.rules = self.site.rules
        return out

    def unavailable(self, origin: str, answer: Unavailable) -> list[commands.Command]:
        """The origin answers that it has no such artifact."""
        order = self._answered(origin)
        fields = (order.generation, order.round, order.attempt, order.origin, order.purpose)
        return self.feed(events.ArtifactUnavailable(*fields, answer))

    def finish(self, *, crash_after: int | None = None) -> list[commands.Command]:
        """The worker carries out its newest order."""
        return self.feed(self.result(), crash_after=crash_after)

    def result(self) -> Any:
        """The worker's answer to its newest order."""
        return carry_out(self.order, self.rules)

    def fail(self, fault: str = "crash", reason: str = "killed") -> list[commands.Command]:
        """The worker fails at its newest order."""
        return self.feed(events.WorkFailed(self.order.generation, self.order.attempt, fault, reason))

    @property
    def kinds(self) -> list[str]:
        """The kinds of the rows so far."""
        return [kind for kind, _, _ in self.audit.rows]

    def body(self, kind: str) -> Any:
        """The body of the newest row of a kind."""
        return next(body for known, _, body in reversed(self.audit.rows) if known == kind)
