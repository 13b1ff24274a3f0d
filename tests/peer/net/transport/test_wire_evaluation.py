"""A report survives the wire; a value outside a limit is refused by name, in both directions."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.core import limits
from peer.core.artifacts import UNMEASURED, EvaluationResult
from peer.core.limits import COUNT_MAX
from peer.net.transport.bounds import WireError
from peer.net.transport.manifest import decode_manifest
from peer.net.transport.wire import decode_report, encode_report
from peer.pb import peer_pb2 as pb

VECTORS = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "evaluation.json").read_text())
REPORT = EvaluationResult(1, 3, "ab" * 32, 12, {"auc": 0.75})
SHA256 = b"1" * 32

rounds = st.integers(1, limits.ROUNDS_MAX)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
texts = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)
figures = st.dictionaries(texts, st.floats(-9, 9), max_size=4)


@given(
    st.builds(EvaluationResult, rounds, rounds, digests, st.integers(0, COUNT_MAX), figures)
    | st.builds(EvaluationResult, rounds, rounds, digests, unmeasured=st.sampled_from(UNMEASURED))
    | st.builds(EvaluationResult, rounds, rounds, st.none(), unmeasured=st.just("not_received"))
)
def test_a_report_survives_the_wire(report: EvaluationResult) -> None:
    assert decode_report(pb.Metrics.FromString(encode_report(report).SerializeToString())) == report


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.Metrics(generation=0, round=1, sha256=SHA256), "metrics.generation"),
        (pb.Metrics(generation=1, round=0, sha256=SHA256), "metrics.round"),
        (pb.Metrics(generation=1, round=1), "metrics.sha256"),
        (pb.Metrics(generation=1, round=1, sha256=b"1"), "metrics.sha256"),
        (pb.Metrics(generation=1, round=1, unmeasured=pb.UNMEASURED_REFUSED), "metrics.sha256"),
        (pb.Metrics(generation=1, round=1, sha256=b"1", unmeasured=pb.UNMEASURED_NOT_RECEIVED), "metrics.sha256"),
        (pb.Metrics(generation=1, round=1, sha256=SHA256, samples=COUNT_MAX + 1), "metrics.samples"),
        (pb.Metrics(generation=1, round=1, sha256=SHA256, values={"a": float("nan")}), r"metrics.values\[a\] = nan"),
        (pb.Metrics(generation=1, round=1, sha256=SHA256, values={"a": 1e300}), r"metrics.values\[a\] = 1e\+300"),
        (pb.Metrics(generation=1, round=1, sha256=SHA256, values={"": 1.0}), "metrics.values is empty"),
        (pb.Metrics(generation=1, round=1, sha256=SHA256, values={"a\x1b[2J": 1.0}), "cannot be printed"),
        (
            pb.Metrics(generation=1, round=1, sha256=SHA256, values={str(i): 1.0 for i in range(1001)}),
            "metrics.values has 1001 entries, over the limit of 1000",
        ),
        (
            pb.Metrics(generation=1, round=1, sha256=SHA256, withheld=True, samples=3),
            "must be empty where metrics.withheld is set",
        ),
        (
            pb.Metrics(generation=1, round=1, sha256=SHA256, unmeasured=pb.UNMEASURED_FAILED, values={"auc": 1.0}),
            "must be empty where metrics.unmeasured is set",
        ),
        (
            pb.Metrics(generation=1, round=1, sha256=SHA256, unmeasured=pb.UNMEASURED_FAILED, withheld=True),
            "metrics.withheld and metrics.unmeasured are both set",
        ),
        (pb.Metrics(generation=1, round=1, sha256=SHA256, unmeasured=9), "metrics.unmeasured"),  # type: ignore[arg-type]
    ],
)
def test_a_message_outside_the_limits_is_refused_by_name(message: pb.Metrics, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_report(message)


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 0},
        {"sha256": None},
        {"samples": -1},
        {"metrics": {"auc": float("nan")}},
        {"unmeasured": "failed"},
        {"unmeasured": "withheld"},
    ],
)
def test_a_site_never_sends_what_others_would_refuse(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="metrics"):
        encode_report(replace(REPORT, **changes))


@pytest.mark.parametrize("vector", VECTORS["metrics"]["accepted"], ids=lambda vector: vector["what"])
def test_known_messages_are_read(vector: Any) -> None:
    report = decode_report(pb.Metrics.FromString(bytes.fromhex(vector["message"])))
    assert asdict(report) == vector["report"]
    assert decode_report(encode_report(report)) == report


@pytest.mark.parametrize("vector", VECTORS["metrics"]["refused"], ids=lambda vector: vector["what"])
def test_known_messages_are_refused(vector: Any) -> None:
    with pytest.raises(WireError):
        decode_report(pb.Metrics.FromString(bytes.fromhex(vector["message"])))


def test_a_known_manifest_is_for_evaluation() -> None:
    vector = VECTORS["manifest"]
    manifest = decode_manifest(bytes.fromhex(vector["body"]))
    assert (manifest.evaluation, manifest.round) == (True, vector["round"])


def test_a_report_that_no_peer_would_read_is_not_sent() -> None:
    """Else the peer's server ends the call, and the peer would count as the one that broke the protocol."""
    long = {f"{index:03}{'n' * 1000}": 0.5 for index in range(300)}
    with pytest.raises(WireError, match=r"metrics has \d+ bytes, over the limit of 262144"):
        encode_report(replace(REPORT, metrics=long))
