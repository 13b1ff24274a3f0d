"""How long a site waits for artifacts over a slow link, beside what it cannot avoid, for each pattern.

Four real daemons (``sleeping.py``) train for different times. Every connection to a site runs
through a relay that lets ``RATE`` bytes a second back, as a thin line does. A site that ended its
own work at ``own``, and uses an artifact whose origin made it at ``origin``, cannot go on before
``max(own, origin + link)``, or later where the link has another artifact to carry first. The figure
is what it waited beyond that. It belongs to the machine: the figures of two programs compare only
where both ran on one machine in turn.
``python tests/bench/overlap.py [PATTERN ...]`` prints a line for each pattern; a copy of both files in
another checkout, run with ``PYTHONPATH`` set to its root, measures that version.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from row import Row, below

from peer.core.roster import SiteName
from peer.lab.demo.local_federation import LocalFederation, free_ports
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger

HERE = Path(__file__).resolve().parent
TRAINS_S: Mapping[SiteName, float] = {
    SiteName("africa"): 1.0,
    SiteName("america"): 2.0,
    SiteName("asia"): 3.0,
    SiteName("europe"): 4.0,
}
METHODS: Mapping[str, str] = {
    "permutation": '"fedskd"\nactivation = 0.0',
    "circulate": '"fedcross"',
    "all_to_all": '"fedavg"',
    "visit": '"fedvisit"\nvisits = 1',
    "older": '"fedskd"\nactivation = 0.0',
}
OLDER = "older"
"""The permutation with artifacts of the round before: ``staleness = 1``."""
MEGABYTES = 4
RATE = 4 << 20
"""Bytes a second of a connection: the link takes a second for an artifact."""
ROUNDS = 5
LIMIT_S = 300.0
START_S_MAX = 0.05
PIECE = 64 << 10
IDLE_S = 0.25
"""A line that carried nothing for so long was idle; after a shorter time the relay was late, and catches up."""

DRAFT = """
name = "bench"
rounds = {rounds}
[task]
kind = "classification"
spatial_dims = 1
in_channels = 1
classes = 2
[pace]
linger_s = 1
[method]
name = {method}
"""
DERANGED = '[schedule]\nkind = "derangement"\n'
SHARED = '[shared_model]\nname = "resnet10"\n'
EXTRA: Mapping[str, str] = {"all_to_all": SHARED, "visit": "", OLDER: f"{DERANGED}staleness = 1\n"}
SITE = "[data]\ninput_size = [8]\n"


class ThinLine:
    """Relays connections to a port, and lets so many bytes a second back through each."""

    def __init__(self, port: int, to: int, rate: float) -> None:
        self._port, self._to, self._rate = port, to, rate

    async def start(self) -> None:
        """Listen; the relay ends with its loop."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self._port)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._copy(reader, forth, float("inf")), self._copy(back, writer, self._rate))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float) -> None:
        loop = asyncio.get_running_loop()
        free_s = loop.time()
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                if loop.time() - free_s > IDLE_S:
                    free_s = loop.time()
                free_s += len(piece) / rate
                await asyncio.sleep(free_s - loop.time())
                writer.write(piece)
                await writer.drain()
        writer.close()


def measure(*, quick: bool) -> list[Row]:
    """The time beyond the unavoidable, in each pattern; no target, since it belongs to the machine."""
    rows = []
    for pattern in list(METHODS)[: 1 if quick else None]:
        beyond, starts, _ = run(pattern)
        label = f"{pattern}, link of {MEGABYTES * 2**20 / RATE:g} s: waited beyond the unavoidable"
        rows += [Row(f"{label}, median", statistics.median(beyond), "s"), Row(f"{label}, most", max(beyond), "s")]
        if pattern == OLDER:
            continue  # hardly any site still trains in the round before when the artifact is published
        label = f"{pattern}: a transfer begins after publication, while its receiver trains"
        rows.append(below(f"{label}, median", statistics.median(starts), "s", START_S_MAX))
    return rows


def run(pattern: str) -> tuple[list[float], list[float], float]:
    """For each wait of each site: the seconds that it lasted beyond what own end, origin and link take.

    And for each transfer to a site that trained: the seconds from the publication to its beginning. And
    the seconds from the first order of round 1 to the last answer.
    """
    draft = DRAFT.format(rounds=ROUNDS, method=METHODS[pattern]) + EXTRA.get(pattern, DERANGED)
    with tempfile.TemporaryDirectory() as scratch:
        loopback = LocalFederation.create(Path(scratch), draft, dict.fromkeys(TRAINS_S, SITE))
        lines = []
        for (name, port), inner in zip(_addresses(loopback).items(), free_ports(len(TRAINS_S)), strict=True):
            path = loopback.folder(name).site_toml
            path.write_text(path.read_text().replace(f"127.0.0.1:{port}", f"127.0.0.1:{inner}"))
            lines.append(ThinLine(port, inner, RATE))
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        for line in lines:
            asyncio.run_coroutine_threadsafe(line.start(), loop).result()
        processes = {name: _start(loopback, name, seconds) for name, seconds in TRAINS_S.items()}
        try:
            logs = {name: process.communicate(timeout=LIMIT_S)[0] for name, process in processes.items()}
        finally:
            for process in processes.values():
                process.kill()
            loop.call_soon_threadsafe(loop.stop)
        starts = starts_s(loopback)
    lines_of = {name: [json.loads(line) for line in text.splitlines()] for name, text in logs.items()}
    times_s = [line["s"] for lines in lines_of.values() for line in lines if line["round"]]
    return beyond_unavoidable(lines_of, age=int(pattern == OLDER)), starts, max(times_s) - min(times_s)


def starts_s(loopback: LocalFederation) -> list[float]:
    """The seconds from each publication to the intent of a transfer to a site that trained then."""
    records = {}
    for name in TRAINS_S:
        with contextlib.closing(Journal(loopback.folder(name).generation(1) / "journal.db", read_only=True)) as journal:
            records[name] = journal.records(("published", "chosen", "trained"))
    seconds = []
    for name in TRAINS_S:
        published = {
            record["body"]["artifact"]["sha256"]: record for record in records[name] if record["kind"] == "published"
        }
        with contextlib.closing(Ledger(loopback.folder(name).egress_db, read_only=True)) as ledger:
            sent = ledger.transfers()
        for transfer in sent:
            made = published[transfer["sha256"]]
            before = [record for record in records[SiteName(transfer["peer"])] if record["time"] < made["time"]]
            trains = before and before[-1]["kind"] == "chosen"
            if trains and made["round"] - before[-1]["round"] in (0, 1):  # a site that is behind asks for less
                seconds.append(transfer["time"] - made["time"])
    return seconds


def _addresses(loopback: LocalFederation) -> dict[str, int]:
    return {site.name: int(site.address.rpartition(":")[2]) for site in loopback.federation.site}


def _start(loopback: LocalFederation, name: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, HERE / "sleeping.py", loopback.home, loopback.federation.name, name]
    return subprocess.Popen([*map(str, command), str(MEGABYTES), str(seconds)], stdout=subprocess.PIPE, text=True)


def beyond_unavoidable(logs: Mapping[str, list[dict[str, Any]]], *, age: int = 0) -> list[float]:
    """The waits before orders that use artifacts of peers, less max(own end, the last arrival).

    The sources of an order to train were made in the round before, or ``age`` rounds earlier, those of an
    order to average by training in the same round. Round 1, before which all sites wait for each other,
    does not count, nor another one with the initial models.
    """
    beyond = []
    for name, lines in logs.items():
        uses = [
            (before["s"], line)
            for before, line in itertools.pairwise(lines)
            if line["at"] == "begin" and line["sources"] and (line["order"] != "Train" or line["round"] > 1 + age)
        ]
        arrive_s = arrivals(name, logs, [line for _, line in uses], age=age)
        for index, (own_s, line) in enumerate(uses):
            if line["round"] > 1:
                beyond.append(line["s"] - max(own_s, *(arrive_s[index, peer] for peer, _ in line["sources"])))
    return beyond


def arrivals(
    receiver: str, logs: Mapping[str, list[dict[str, Any]]], uses: list[dict[str, Any]], *, age: int
) -> dict[tuple[int, str], float]:
    """By the index of a use and the origin: when its artifact can be here at the earliest.

    What the receiver has made itself takes no link: the order may give a circulating model to the site
    that trained it in the round before. A link carries what its origin has made one after the other:
    where a visiting model comes home from the site whose own model visits next, it has two artifacts to
    carry.
    """
    link_s = MEGABYTES * 2**20 / RATE
    made = sorted(
        (made_s(logs[peer], line, age=age), index, peer)
        for index, line in enumerate(uses)
        for peer, _ in line["sources"]
    )
    free_s: dict[str, float] = {}
    arrive_s = {}
    for end_s, index, peer in made:
        if peer == receiver:
            arrive_s[index, peer] = end_s
            continue
        arrive_s[index, peer] = free_s[peer] = max(end_s, free_s.get(peer, end_s)) + link_s
    return arrive_s


def made_s(origin: list[dict[str, Any]], use: Mapping[str, Any], *, age: int) -> float:
    """When the origin of an artifact had made it."""
    trains = use["order"] == "Train"
    made_in, makers = (use["round"] - 1 - age, ("Train", "Aggregate")) if trains else (use["round"], ("Train",))
    return max(
        line["s"] for line in origin if (line["at"], line["round"]) == ("end", made_in) and line["order"] in makers
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or METHODS:
        waits, starts, rounds_s = run(chosen)
        print(
            f"{chosen}: {len(waits)} waits, beyond the unavoidable: median {statistics.median(waits):.2f} s, "
            f"most {max(waits):.2f} s, sum {sum(waits):.1f} s; the {ROUNDS} rounds took {rounds_s:.1f} s"
        )
        if starts:
            print(
                f"{chosen}: {len(starts)} transfers to sites that trained began after publication: "
                f"median {statistics.median(starts):.3f} s, most {max(starts):.3f} s"
            )
