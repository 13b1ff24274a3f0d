"""From a clone to the first trained round: three hospitals with images of their own, by the commands of deploy/README.

    python tests/bench/first_round.py

Each hospital has 150 PNG files and a table of labels (digits from scikit-learn: even or odd). The
program clones this repository, installs it, founds a federation, enrols the hospitals, imports and
configures what they have, and starts their daemons. It prints when each step ended. What a person
needs to read and type is not in these times.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fakes.drafts import draft, task
from peer.lab.demo.local_federation import free_ports

ROOT = Path(__file__).resolve().parents[2]
SITES = ("north", "south", "west")
IMAGES, TRAINING = 150, 80
ROUNDS = 3
LIMIT_S = 600


def main() -> None:
    """Do it all in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, site in enumerate(SITES):
            write_images(folder / f"{site}-images", number)
        walk(folder)


def write_images(folder: Path, number: int) -> None:
    """The share of one hospital: picture files, and a table that names and labels them."""
    digits = load_digits()
    chosen = np.random.default_rng(0).permutation(len(digits.target))[number * IMAGES :][:IMAGES]
    folder.mkdir()
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "label", "subject", "split"])
        for count, index in enumerate(chosen):
            picture = Image.fromarray((digits.images[index] * 15).astype(np.uint8)).resize((32, 32))
            picture.save(folder / f"{count}.png")
            label = "odd" if digits.target[index] % 2 else "even"
            table.writerow([f"{count}.png", label, f"P{count}", "train" if count < TRAINING else "test"])


def walk(folder: Path) -> None:
    """Type the commands, and print a line after each step."""
    start = time.perf_counter()
    program = folder / "venv" / "bin" / "mhfl-peer"
    environment = {**os.environ, "MHFL_HOME": str(folder / "home")}

    def type_command(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, timeout=LIMIT_S)
        if done.returncode:
            raise SystemExit(f"exit status {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
        return done.stdout

    def say(step: str) -> None:
        print(f"{time.perf_counter() - start:6.0f} s  {step}", flush=True)

    type_command("git", "clone", "--quiet", ROOT, "clone")
    say("cloned")
    type_command(sys.executable, "-m", "venv", "venv")
    type_command("venv/bin/pip", "install", "--quiet", "-c", "clone/constraints.txt", "./clone")
    say("installed")
    ports = iter(free_ports(len(SITES)))
    roster = [{"name": site, "address": f"127.0.0.1:{next(ports)}"} for site in SITES]
    stages = {"train": {"learning_rate": 0.001}}
    text = draft("digits", rounds=ROUNDS, method="fedvisit", task=task(2), stages=stages, site=roster)
    (folder / "draft.toml").write_text(text)
    type_command(program, "federation", "create", "draft.toml", "--out", "ca")
    say("founded")
    for site in SITES:
        request = json.loads(
            type_command(program, "site", "init", "--federation", "ca/federation.toml", "--site", site, "--json")
        )
        bundle = f"{site}.bundle"
        confirmed = ("--fingerprint", request["fingerprint"])
        type_command(program, "federation", "admit", "--ca", "ca", f"{site}.csr", "--out", bundle, *confirmed)
        type_command(program, "site", "join", bundle)
    say("enrolled")
    for site in SITES:
        type_command(
            program, "data", "import", f"{site}-images/labels.csv", "--out", f"{site}.json", "--classes", "even,odd"
        )
        datalist = f"data.datalist={folder / site}.json"
        type_command(program, "site", "configure", "--site", site, "--set", datalist, "--yes")
    say("data imported, networks chosen and tried")
    type_command(program, "start", "--all")
    try:
        committed = 0
        while committed < ROUNDS and time.perf_counter() - start < LIMIT_S:
            time.sleep(1)  # between two looks; a command line has nothing to wait on
            lists = [json.loads(type_command(program, "rounds", "--site", site, "--json")) for site in SITES]
            if committed < min(map(len, lists)):
                committed = min(map(len, lists))
                say(f"round {committed} committed at all sites")
    finally:
        type_command(program, "stop", "--all")


if __name__ == "__main__":
    main()
