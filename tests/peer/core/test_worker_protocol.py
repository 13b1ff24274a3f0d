"""The lines between daemon and worker: messages survive them, and wrong ones name their field."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.limits import WORKER_LINE_BYTES_MAX
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import (
    FROM_WORKER,
    TO_WORKER,
    StillWorking,
    WorkerSetting,
    decode,
    encode,
    from_json,
)

DIGEST = Sha256("ab" * 32)
MODEL = Artifact("model", SiteName("asia"), DIGEST, 60, 20, {"name": "resnet10", "widths": [8, 16]}, 117)
SOURCE = Source(SiteName("asia"), 3, MODEL, "stale")

MESSAGES: list[Any] = [
    WorkerSetting("asia", DIGEST, {"name": "f", "rounds": 3}, {"device": "cpu"}, "gen-0001", "."),
    commands.Initialise(1, 2),
    commands.Train(1, 3, 4, "train", "round-000002", (SOURCE, SOURCE)),
    commands.Train(1, 3, 4, "train", "round-000002", (), SiteName("asia")),
    commands.Aggregate(1, 3, 4, "round-000002", (SOURCE,)),
    commands.Adopt(1, 3, 4, "round-000002", SOURCE),
    commands.Evaluate(1, 3, 4, "round-000002"),
    commands.Evaluate(1, 3, 4, "round-000002", (SOURCE,), lent=True),
    commands.Measure(1, 3, 4, SOURCE),
    commands.Rehearse(1, 4, (SiteName("asia"), SiteName("europe"))),
    commands.Halt(1, 4),
    events.Initialised(1, 4, "round-000000", MODEL, {"train": 117, "test": 30}, 1, "cpu"),
    events.Initialised(1, 4, "round-000000", None, {}, 1, "cuda"),
    events.Queued(1, 4, 2),
    events.Progressed(1, 3, 4, "train", 5, 20, {"ce": 0.25, "skd": 1.0}),
    events.Trained(1, 3, 4, "train", "round-000003", MODEL, {"train_ce": 0.25}, 1, 12.5),
    events.Trained(1, 3, 4, "decide", "round-000003", None, {}, 1, 12.5),
    events.Aggregated(1, 3, 4, "round-000003", DIGEST, (SiteName("asia"), SiteName("europe"))),
    events.Adopted(1, 3, 4, "round-000003", MODEL),
    events.Evaluated(1, 3, 4, {"auc": 0.875}),
    events.Evaluated(1, 3, 4, {"auc": 0.875}, MODEL),
    events.Measured(1, 3, 4, {"auc": 0.875, "samples": 12.0}),
    events.Measured(1, 3, 4, {}, "tensor 'a' is missing"),
    events.Rehearsed(1, 4, "cpu", {"train": 0.5}, 10.0, 1 << 30, 1 << 34, 60),
    events.Halted(1, 4),
    StillWorking(),
    events.ArtifactRejected(1, 3, 4, SiteName("asia"), DIGEST, "tensor 'a' is missing"),
    events.ArtifactRejected(1, 3, 4, SiteName("asia"), DIGEST, "its file is gone", lost=True),
    events.WorkFailed(1, 4, "memory", "CUDA out of memory\nTried to allocate 2 GiB"),
]


def table(message: object) -> dict[str, type]:
    return TO_WORKER if type(message).__name__ in TO_WORKER else FROM_WORKER


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_went(message: Any) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line, table(message)) == message


def test_every_message_is_covered() -> None:
    assert {type(message).__name__ for message in MESSAGES} == {*TO_WORKER, *FROM_WORKER}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_field_is_checked(message: Any) -> None:
    document = json.loads(encode(message))
    for field in dataclasses.fields(message):
        wrong = json.dumps({**document, field.name: [{}]}).encode()
        with pytest.raises(ValueError, match=field.name):
            decode(wrong, table(message))
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        short = json.dumps({key: value for key, value in document.items() if key != field.name}).encode()
        if required:
            with pytest.raises(ValueError, match=rf"{type(message).__name__}\.{field.name} is missing"):
                decode(short, table(message))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[]", "no message of type"),
        (b"3", "no message of type"),
        (b"{}", "no message of type None"),
        (b'{"type": "Began"}', "no message of type 'Began'"),
        (b'{"type": "Train"}', "no message of type 'Train'"),
        (b'{"type": "Halted", "generation": 1, "attempt": 1, "extra": 1}', "Halted: unknown field 'extra'"),
        (b'{"type": "Halted", "generation": true, "attempt": 1}', "Halted.generation: expected int, got bool"),
        (b'{"type": "Halted", "generation": 1.0, "attempt": 1}', "Halted.generation: expected int, got float"),
        (b'{"type": "Halted", "generation": null, "attempt": 1}', "Halted.generation: expected int, got NoneType"),
        (b"[" * 100_000, "nests too deeply"),
        (b'{"\x80": 1}', "codec can't decode"),
    ],
)
def test_a_line_that_makes_no_sense_says_why(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(line, FROM_WORKER)


def test_a_line_has_a_limit() -> None:
    with pytest.raises(ValueError, match=f"over the limit of {WORKER_LINE_BYTES_MAX}"):
        decode(b" " * (WORKER_LINE_BYTES_MAX + 1), FROM_WORKER)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (
            ("artifact", "sha256"),
            "../../pki/site.key",
            r"Trained.artifact.sha256: '../../pki/site.key' is not a SHA-256",
        ),
        (("artifact", "sha256"), "AB" * 32, "is not a SHA-256 digest"),
        (("artifact", "owner"), "Asia", r"Trained.artifact.owner: site name 'Asia' must be"),
        (("artifact", "kind"), "weights", r"Trained.artifact.kind: 'weights' is none of 'model', 'head'"),
        (("artifact", "spec"), [], r"Trained.artifact.spec: expected an object"),
        (("artifact", "tensors"), [], r"Trained.artifact: unknown field 'tensors'"),
        (("artifact", "license"), 1, r"Trained.artifact: unknown field 'license'"),
        (("metrics",), {"auc": "high"}, r"Trained.metrics.auc: expected float, got str"),
        (("duration_s",), "long", r"Trained.duration_s: expected float"),
    ],
)
def test_a_wrong_field_is_named_however_deep(path: tuple[Any, ...], value: Any, reason: str) -> None:
    document = json.loads(encode(events.Trained(1, 3, 4, "train", "s", MODEL, {"auc": 0.5}, 1, 12.5)))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=reason):
        decode(json.dumps(document).encode(), FROM_WORKER)


def test_whole_numbers_pass_for_seconds_and_metrics() -> None:
    assert from_json(float, 3) == 3.0
    assert isinstance(from_json(float, 3), float)
    with pytest.raises(ValueError, match="expected float, got bool"):
        from_json(float, True, path="x")


def test_an_order_with_the_artifacts_of_two_hundred_sites_fits_into_a_line() -> None:
    order = commands.Aggregate(1, 7, 2, "state", (SOURCE,) * 200)
    line = encode(order)
    assert len(line) < WORKER_LINE_BYTES_MAX / 10
    assert decode(line, TO_WORKER) == order
