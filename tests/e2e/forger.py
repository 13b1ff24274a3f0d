"""A worker that makes what a site must not send: ``python tests/e2e/forger.py --forge FORGERY,FORGERY… --fd N``.

Its daemon, key and certificate are the real ones. It trains nothing, and has the first forgery ready for round 1, the
second for round 2, and so on.
"""

import argparse
import dataclasses
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.core import commands, events
from peer.core.messages import Artifact
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import FROM_WORKER, TO_WORKER, WorkerSetting, decode, encode
from peer.methods.registry import PLANS

STATE = "round-000000/forged"
RESNET = {"name": "resnet10", "hyper": {"width": 8, "stem_stride": 2}}
TASK = {"spatial_dims": 3, "in_channels": 1, "classes": 2}


@dataclass(frozen=True)
class Forgery:
    """What is wrong with an artifact: of which network it says that it is, and what is done to its state and manifest.

    ``kind`` is another than the method's; ``manifest`` changes what is signed after the file was written.
    """

    spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    claim: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    state: Callable[[dict[str, Any]], object] = lambda state: None
    kind: str = ""
    manifest: Callable[[Artifact], Artifact] = lambda artifact: artifact


def _fill(value: float) -> Callable[[dict[str, Any]], object]:
    """Every weight matrix is this value."""
    return lambda state: [tensor.fill_(value) for tensor in state.values() if tensor.ndim > 1]


def _first(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], object]:
    """The first tensor is another."""
    return lambda state: state.update({min(state): change(state[min(state)])})


def _reshaped(artifact: Artifact) -> Artifact:
    """The manifest says of one tensor that it is transposed."""
    *others, last = artifact.tensors
    return dataclasses.replace(artifact, tensors=(*others, dataclasses.replace(last, shape=(*last.shape[::-1], 1))))


PROXY = {"name": "resnet10", "hyper": {"width": 4, "stem_stride": 2}}
MESSENGER = {"name": "messenger_classification", "hyper": {"width": 4}}
FORGERIES: Mapping[str, Forgery] = {
    "another-method": Forgery(spec=MESSENGER, kind="messenger"),
    "another-method-too": Forgery(spec=PROXY, kind="proxy"),
    "unlisted": Forgery(claim={"name": "os.path:join", "head": "fc"}),
    "names": Forgery(state=lambda state: state.update({"evil": state.pop(min(state))})),
    "shape": Forgery(state=_first(lambda tensor: tensor[:1].clone())),
    "dtype": Forgery(state=_first(lambda tensor: tensor.half())),
    "nan": Forgery(state=_fill(float("nan"))),
    "inf": Forgery(state=_fill(float("inf"))),
    "overflow": Forgery(state=lambda state: state["bn1.bias"].fill_(3e38)),
    "width": Forgery(spec={"name": "resnet10", "hyper": {"width": 8, "stem_stride": 2, "projection": 5}}),
    "classes": Forgery(spec={"classes": 3}),
    "another-spec": Forgery(spec={"name": "resnet10", "hyper": {"width": 6, "stem_stride": 2}}),
    "file": Forgery(manifest=_reshaped),
}


class Forger:
    """Answers a daemon's orders as a worker does, without any work."""

    def __init__(self, setting: WorkerSetting, forgeries: list[str]) -> None:
        self._setting, self._forgeries = setting, forgeries
        self._plan = PLANS[setting.federation["method"]["name"]]

    def answer(self, order: commands.Command) -> events.Event:
        """What a worker would say."""
        match order:
            case commands.Initialise(generation, attempt):
                forged = self._forge(1) if self._plan.published == "commit" else None
                return events.Initialised(generation, attempt, STATE, forged, {}, 1, "cpu")
            case commands.Train(generation, round, attempt, stage):
                forged = self._forge(round) if self._plan.published == stage else None
                if self._plan.published == "commit":
                    forged = self._forge(round + 1)
                return events.Trained(generation, round, attempt, stage, STATE, forged, {}, 1, 0.0)
            case commands.Aggregate(generation, round, attempt):
                whom = (SiteName(self._setting.site_name),)
                return events.Aggregated(generation, round, attempt, STATE, Sha256("0" * 64), whom)
            case commands.Evaluate(generation, round, attempt):
                return events.Evaluated(generation, round, attempt, {})
            case commands.Halt(generation, attempt):
                return events.Halted(generation, attempt)
        raise ValueError(f"no answer to {type(order).__name__}")

    def _forge(self, round: int) -> Artifact | None:
        """The artifact of a round."""
        import torch

        import models
        from peer.methods.method import head_tensors
        from peer.training.artifact import write_artifact
        from peer.training.tensors import state_of

        if round > len(self._forgeries):
            return None
        forgery, kind = FORGERIES[self._forgeries[round - 1]], self._plan.artifact
        honest = {"proxy": PROXY, "messenger": MESSENGER}.get(kind or "", RESNET)
        torch.manual_seed(round)
        network = models.build({**TASK, **honest, **forgery.spec})
        state = state_of(network)
        if kind == "head":
            state = {name: state[name] for name in head_tensors(network, {})}
        forgery.state(state)
        forged = write_artifact(
            Path(self._setting.home) / "artifacts",
            state,
            spec={**network.spec, **forgery.claim},
            kind=forgery.kind or kind,  # type: ignore[arg-type]
            owner=SiteName(self._setting.site_name),
            steps=round,
            training_samples=None,
        )
        return forgery.manifest(forged)


def orders(connection: socket.socket) -> Iterator[commands.Command]:
    """The lines of a daemon, until it is gone."""
    with connection.makefile("rb") as lines:
        for line in lines:
            yield decode(line, TO_WORKER)


def work(connection: socket.socket, forgeries: list[str]) -> None:
    """Be the worker."""
    came = orders(connection)
    setting = next(came)
    assert isinstance(setting, WorkerSetting)
    forger = Forger(setting, forgeries)
    for order in came:
        event = forger.answer(order)
        assert type(event).__name__ in FROM_WORKER
        connection.sendall(encode(event))


def main() -> None:
    """Be the worker on the socket of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forge", required=True, help="names of forgeries, one a round")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the daemon")
    arguments = parser.parse_args()
    work(socket.socket(fileno=arguments.fd), arguments.forge.split(","))


if __name__ == "__main__":
    main()
