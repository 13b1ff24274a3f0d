"""A worker without torch: ``worker.py MODE NUMBERS [PATTERN KIND PUBLISHED] --fd N``.

MODE says how it misbehaves. The artifacts that it makes hold so many NUMBERS and depend on what it was given. The
method's plan has the other three; without them it is FedSKD's. With them, the worker leaves the number and the bytes
of its orders in the file ``orders`` when it ends.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import socket
import struct
import sys
import time

mode, numbers, *plan = sys.argv[1 : sys.argv.index("--fd")]
numbers = int(numbers)
pattern, kind_of_artifact, published = plan or ("permutation", "model", "commit")
connection = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
lines = connection.makefile("rb")
if mode == "nonsense":
    sys.exit(4)
setting = json.loads(lines.readline())
home = pathlib.Path(setting["home"])


def say(kind, order, **more):
    keys = ("generation", "attempt") if kind in ("WorkFailed", "Queued") else ("generation", "round", "attempt")
    answer = {key: order[key] for key in keys if key in order}
    connection.sendall(json.dumps({"type": kind, **answer, **more}).encode() + b"\n")


def artifact(*seeds, owner=setting["site_name"], kind=kind_of_artifact):
    seed = hashlib.sha256("|".join([setting["site_name"], *map(str, seeds)]).encode()).digest()
    header = json.dumps({"w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}).encode()
    if setting["federation"]["aggregate"]["secure"]:  # a sum has no place for what is no number
        seed = bytes(each & 0xBF if place % 4 == 3 else each for place, each in enumerate(seed))
    content = struct.pack("<Q", len(header)) + header + (seed * (numbers // 8 + 1))[: 4 * numbers]
    digest = hashlib.sha256(content).hexdigest()
    (home / "artifacts" / f"{digest}.safetensors").write_bytes(content)
    own = {"kind": kind, "owner": owner, "spec": {"name": "resnet10"}, "steps": 0}
    return {**own, "sha256": digest, "bytes": len(content)}


def checkpoint(round, step):
    """The name of a state; with ``paced`` there is a file of it, which a backup needs."""
    state = f"round-{round:06}/{step}"
    if mode == "paced":
        folder = home / "checkpoints" / state
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"")
    return state


def train(order):
    """The facts of a training stage: its artifact, or the visiting models as this site trained them."""
    digests = [source["artifact"]["sha256"] for source in order["sources"]]
    owner = order["circulate"] or setting["site_name"]
    state = order["base"] if order["circulate"] else checkpoint(order["round"], "train")
    facts = {"stage": order["stage"], "state": state, "artifact": None}
    if pattern == "visit":
        owners = [source["artifact"]["owner"] for source in order["sources"]]
        facts["returned"] = [artifact(order["round"], owner, owner=owner, kind="return") for owner in owners]
    elif published in ("commit", order["stage"]):
        facts["artifact"] = artifact(order["base"], owner, order["round"], *digests, owner=owner)
    return {**facts, "metrics": {"train_total": 0.5}, "threads": 1, "duration_s": 0.25}


def aggregate(order):
    """The facts of a mean: every site has the same one; where models visit, each has an artifact of its own."""
    own = [] if order.get("shadow") else [setting["site_name"]]
    origins = sorted({*own, *(source["origin"] for source in order["sources"])})
    facts = {"state": checkpoint(order["round"], "mean"), "contributors": origins}
    if pattern == "visit":
        own = artifact(order["round"], "merged")
        return {**facts, "sha256": own["sha256"], "artifact": own}
    return {**facts, "sha256": hashlib.sha256(f"{order['round']} {origins}".encode()).hexdigest()}


def die_once(order):
    mark = home / f"died in {order['type']}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)


def turn(order):
    """Its turn at the device, where site.toml has a folder for the tickets; two at once end in an error."""
    if setting["site"]["training"]["gpu"] != "turns":
        return contextlib.nullcontext()
    from peer.train.device_queue import DeviceQueue

    folder = pathlib.Path(setting["site"]["training"]["gpu_folder"])

    @contextlib.contextmanager
    def alone():
        one_turn = DeviceQueue(folder / "cpu").turn(lambda ahead: say("Queued", order, ahead=ahead))
        with one_turn, (folder / "computes").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    return alone()


orders = size = 0
for line in lines:
    order = json.loads(line)
    orders, size = orders + 1, size + len(line)
    if order["type"] == "Halt":
        say("Halted", order)
    elif mode == "mute":
        pass
    elif mode == "bad data":
        say("WorkFailed", order, fault="data", reason="no data here")
        sys.exit(1)
    elif order["type"] == "Initialise":
        if mode == "class lost":
            print("peer.train.samples: label maps lose classes: at [data] input_size nothing is left", file=sys.stderr)
        unreadable = int(mode == "one unreadable")
        if unreadable:
            print(
                "WARNING peer.train.samples sample unreadable: image=a b.png reason=it has 3 channels", file=sys.stderr
            )
        figures = {"threads": 1, "device": "cpu", "samples": {"training": 4, "test": 2, "unreadable": unreadable}}
        first = artifact("initial") if published == "commit" else None
        say("Initialised", order, state=checkpoint(0, "initial"), artifact=first, **figures)
    elif order["type"] == "Train":
        if mode == "paced":
            time.sleep(0.5)
        if mode == "dies once":
            die_once(order)
        if mode == "always fails":
            say("WorkFailed", order, fault="memory", reason="out of\n memory")
            sys.exit(1)
        with turn(order):
            say("Progressed", order, stage=order["stage"], step=1, steps=2, losses={"total": 0.5})
            if mode == "in turns":
                time.sleep(0.01)
        say("Trained", order, **train(order))
    elif order["type"] == "Aggregate":
        say("Aggregated", order, **aggregate(order))
    elif order["type"] == "Adopt":
        say("Adopted", order, state="home", artifact=artifact("home"))
    elif order["type"] == "Rehearse":
        if mode == "killed":
            os.kill(os.getpid(), 9)
        if mode == "too large":
            say("WorkFailed", order, fault="memory", reason="out of memory")
            sys.exit(1)
        sizes = {"memory_bytes": 3 << 30, "available_bytes": (3 if mode == "tight" else 8) << 30}
        sizes["artifact_bytes"] = 4 * numbers
        sizes["padding_share"] = 0.68 if mode == "on padding" else 0.1
        say("Rehearsed", order, device="cpu", step_s={"train": 0.5}, round_s=600.0, **sizes)
    elif order["type"] == "Measure":
        if mode == "guests kill it":
            os.kill(os.getpid(), 9)
        assert setting["duty"] == "measure"
        assert setting["site"]["training"]["device"] == "cpu"
        content = (home / "artifacts" / (order["source"]["artifact"]["sha256"] + ".safetensors")).read_bytes()
        say("Measured", order, metrics={"auc": content[-1] / 255, "samples": 20.0})
    else:
        lent = {"artifact": artifact("lent", order["base"])} if order["lent"] else {}
        say("Evaluated", order, metrics={"auc": 0.75, "samples": 30.0}, **lent)

if plan:
    (home / "orders").write_text(f"{orders} {size}")
