"""A worker without torch: ``worker.py MODE NUMBERS --fd N``.

MODE says how it misbehaves. The artifacts that it makes hold so many NUMBERS and depend on what it was given.
"""

import hashlib
import json
import os
import pathlib
import socket
import struct
import sys
import time

mode, numbers = sys.argv[1], int(sys.argv[2])
connection = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
lines = connection.makefile("rb")
if mode == "nonsense":
    sys.exit(4)
setting = json.loads(lines.readline())
home = pathlib.Path(setting["home"])


def say(kind, order, **more):
    keys = ("generation", "attempt") if kind == "WorkFailed" else ("generation", "round", "attempt")
    answer = {key: order[key] for key in keys if key in order}
    connection.sendall(json.dumps({"type": kind, **answer, **more}).encode() + b"\n")


def artifact(*seeds):
    seed = hashlib.sha256("|".join([setting["site_name"], *map(str, seeds)]).encode()).digest()
    header = json.dumps({"w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}).encode()
    content = struct.pack("<Q", len(header)) + header + (seed * (numbers // 8 + 1))[: 4 * numbers]
    digest = hashlib.sha256(content).hexdigest()
    (home / "artifacts" / f"{digest}.safetensors").write_bytes(content)
    tensors = [{"name": "w", "dtype": "F32", "shape": [numbers]}]
    own = {"kind": "model", "owner": setting["site_name"], "spec": {"name": "resnet10"}, "steps": 0}
    return {**own, "sha256": digest, "bytes": len(content), "tensors": tensors}


def die_once(order):
    mark = home / f"died in {order['type']}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)


for line in lines:
    order = json.loads(line)
    if order["type"] == "Halt":
        say("Halted", order)
    elif mode == "mute":
        pass
    elif mode == "bad data":
        say("WorkFailed", order, fault="data", reason="no data here")
        sys.exit(1)
    elif order["type"] == "Initialise":
        unreadable = int(mode == "one unreadable")
        if unreadable:
            print(
                "WARNING peer.training.data sample unreadable: image=a b.png reason=it has 3 channels", file=sys.stderr
            )
        figures = {"threads": 1, "device": "cpu", "samples": {"training": 4, "test": 2, "unreadable": unreadable}}
        say("Initialised", order, state="initial", artifact=artifact("initial"), **figures)
    elif order["type"] == "Train":
        if mode == "paced":
            time.sleep(0.5)
        if mode == "dies once":
            die_once(order)
        if mode == "always fails":
            say("WorkFailed", order, fault="memory", reason="out of\n memory")
            sys.exit(1)
        say("Progressed", order, stage=order["stage"], step=1, steps=2, losses={"total": 0.5})
        trained = artifact(order["base"], *(source["artifact"]["sha256"] for source in order["sources"]))
        state = f"round-{order['round']:06}"
        done = {"metrics": {"train_total": 0.5}, "threads": 1, "duration_s": 0.25}
        say("Trained", order, stage=order["stage"], state=state, artifact=trained, **done)
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
