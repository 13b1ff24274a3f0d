"""A report on a lent model between its domain type and the message ``Metrics``: every field is checked, both ways."""

from __future__ import annotations

from peer.core import limits
from peer.core.facts import UNMEASURED, Report, Unmeasured
from peer.core.roster import Sha256
from peer.pb import peer_pb2 as pb
from peer.transport.bounds import WireError, at_most, digest, finite, known, number, text

REASON_OF: dict[pb.Unmeasured.ValueType, Unmeasured] = {
    pb.Unmeasured.Value(f"UNMEASURED_{reason.upper()}"): reason for reason in UNMEASURED if reason != "withheld"
}
CODE = {reason: code for code, reason in REASON_OF.items()}


def encode_report(report: Report) -> pb.Metrics:
    """The content of ``PutMetrics``; ``WireError`` when other sites would refuse it."""
    _check(report)
    return pb.Metrics(
        generation=report.generation,
        round=report.round,
        sha256=bytes.fromhex(report.sha256 or ""),
        withheld=report.unmeasured == "withheld",
        samples=report.samples,
        values=report.metrics,
        unmeasured=CODE.get(report.unmeasured, pb.UNMEASURED_UNSPECIFIED),
    )


def decode_report(message: pb.Metrics) -> Report:
    """The content of ``PutMetrics``; ``WireError`` names the field and the limit."""
    unmeasured: Unmeasured = ""
    if message.unmeasured:
        unmeasured = known("metrics.unmeasured", REASON_OF, message.unmeasured)
    if message.withheld:
        if unmeasured:
            raise WireError("metrics.withheld and metrics.unmeasured are both set")
        unmeasured = "withheld"
    report = Report(
        generation=message.generation,
        round=message.round,
        sha256=Sha256(message.sha256.hex()) if message.sha256 else None,
        samples=message.samples,
        metrics=dict(message.values),
        unmeasured=unmeasured,
    )
    _check(report)
    return report


def _check(report: Report) -> None:
    number("metrics.generation", report.generation, minimum=1, maximum=limits.ROUNDS_MAX)
    number("metrics.round", report.round, minimum=1, maximum=limits.ROUNDS_MAX)
    if report.sha256 is not None or report.unmeasured != "not_received":
        digest("metrics.sha256", report.sha256 or "")
    number("metrics.samples", report.samples)
    at_most("metrics.values", len(report.metrics), limits.METRICS_MAX, "entries")
    if report.unmeasured and (report.metrics or report.samples):
        field = "withheld" if report.unmeasured == "withheld" else "unmeasured"
        raise WireError(f"metrics.values and metrics.samples must be empty where metrics.{field} is set")
    for name, value in report.metrics.items():
        text("metrics.values", name)
        finite(f"metrics.values[{name}]", value, minimum=-float(limits.COUNT_MAX), maximum=float(limits.COUNT_MAX))
