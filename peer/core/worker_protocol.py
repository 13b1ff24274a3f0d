"""The JSON lines between the daemon and its worker: core's own commands and events, one object a
line.

The daemon sends ``{"type": "Train", ...}``, the worker answers ``{"type": "Trained", ...}``. The
first line to a worker is a ``WorkerSetting``. Decoding checks every field against its declared
type: a worker runs a researcher's network code, so the daemon does not trust its answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from peer.core import commands, events
from peer.core.json_codec import from_json as from_json
from peer.core.json_codec import to_json as to_json
from peer.core.limits import WORKER_LINE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class WorkerSetting(commands.Command):
    """The configuration that a worker gets before its first command.

    ``federation`` and ``site`` are the validated documents (``federation.toml``, ``site.toml``) as
    plain JSON values. ``home`` is the generation's folder, which holds ``artifacts/`` and
    ``checkpoints/``. A worker with the ``duty`` to measure lent models writes nothing there.

    ``noise_key`` is a secret in hexadecimal, from which a private federation's noise derives, and ``budget_folder`` has
    the record of what was spent of the guarantee; empty where nothing is recorded, as in a simulation. ``spent_mu`` is
    what the site's ledger knows to be spent.
    """

    site_name: str
    federation_digest: str
    federation: Mapping[str, Any]
    site: Mapping[str, Any]
    home: str
    base_folder: str
    duty: Literal["train", "measure"] = "train"
    noise_key: str = field(default="", repr=False)
    budget_folder: str = ""
    spent_mu: float = 0.0


@dataclass(frozen=True, slots=True)
class StillWorking(events.Event):
    """A sign of progress between two reports; it is for the daemon's watchdog, not for the state
    machine.
    """


TO_WORKER: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        WorkerSetting,
        commands.Initialise,
        commands.Train,
        commands.Aggregate,
        commands.Adopt,
        commands.Evaluate,
        commands.Measure,
        commands.Rehearse,
        commands.Halt,
    )
}
FROM_WORKER: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        events.Initialised,
        events.Queued,
        events.Progressed,
        events.Trained,
        events.Aggregated,
        events.Adopted,
        events.Evaluated,
        events.Measured,
        events.Rehearsed,
        events.Halted,
        events.ArtifactRejected,
        events.WorkFailed,
        StillWorking,
    )
}


def encode(message: object) -> bytes:
    """Encode the message as one line of JSON with its type's name, line feed included."""
    document = {"type": type(message).__name__, **to_json(message)}
    return json.dumps(document, separators=(",", ":"), allow_nan=True, ensure_ascii=False).encode() + b"\n"


def decode(line: bytes, table: Mapping[str, type]) -> Any:
    """Decode the message in a line. Raises ``ValueError`` naming a missing, unknown or mistyped field."""
    if len(line) > WORKER_LINE_BYTES_MAX:
        raise ValueError(f"a line of {len(line)} bytes is over the limit of {WORKER_LINE_BYTES_MAX}")
    try:
        document = json.loads(line)
    except RecursionError:
        raise ValueError("a line that nests too deeply") from None
    name = document.pop("type", None) if isinstance(document, dict) else document
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"no message of type {name!r}")
    kind = table[name]
    return from_json(kind, document)
