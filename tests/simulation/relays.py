"""Relays: the program's own relay and the sites' own parked connections, on streams of the simulation.

A caller and a site that are joined speak no TLS and no HTTP/2 here. Each message of a call sends a
number through the connection, and counts as arrived once the number has; so whatever the relay, the
site's end or a line does to the bytes, it does to the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import grpc

from peer.core import limits
from peer.net.relay import server as relay_server
from peer.net.relay.client_hello import ClientHello
from peer.net.relay.server import NOBODY_PARKED, UNKNOWN_NAME, Parked, RelayServer
from peer.net.transport import tls
from simulation.faults import Fault, Undo, change, change_links, draw_fault, links_of
from simulation.loop import PROCESS, Process
from simulation.network import KEEPALIVE_S, Failed, Network, SimulatedServer
from simulation.sites import NAMES, RELAY_PORT, Shape, end_process
from simulation.streams import AcceptedSocket, Listener, StreamEnd, TlsSession, stream_pair

if TYPE_CHECKING:
    from simulation.amendments import Act
    from simulation.seeded_run import Simulation

STATUS = grpc.StatusCode
RELAYS = ("gate", "harbour")
RELAYED_SHARE = 0.08
RELAYING_SHARE = 0.05
CONNECTIONS_MAX = 512
FAULTS_MAX = 4
FAULTS_BEGIN = (0.3, 0.6, 1.0)
ALERTS = {UNKNOWN_NAME: "TLSV1_UNRECOGNIZED_NAME", NOBODY_PARKED: "TLSV1_ALERT_INTERNAL_ERROR"}


class Context:
    """In place of an ``ssl.SSLContext`` for streams: the protocols that an end offers."""

    def __init__(self) -> None:
        self.check_hostname, self.protocols = False, list[str]()

    def set_alpn_protocols(self, protocols: list[str]) -> None:
        self.protocols = protocols


@dataclass(eq=False)
class Tunnel:
    """A channel's connection to a site, through a relay.

    Attributes:
        port: what the site's server takes for the caller's own.
        server: the server that answered, once one has.
    """

    port: int = 0
    server: SimulatedServer | None = None
    writers: dict[bool, asyncio.StreamWriter] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    async def carry(self, *, forth: bool) -> None:
        """Wait until a message has passed; ``Failed`` where the connection breaks, or shows no life for too long."""
        arrived, number = asyncio.get_running_loop().create_future(), next(self._numbers)
        self._waiting[number] = arrived
        try:
            if not self.ended.is_set():
                self.writers[forth].write(f"{number}\n".encode())
                async with asyncio.timeout(KEEPALIVE_S):
                    await arrived
        except TimeoutError:
            self.end()
            raise Failed(STATUS.UNAVAILABLE, "keepalive watchdog timeout") from None
        finally:
            del self._waiting[number]
        if self.ended.is_set():
            raise Failed(STATUS.UNAVAILABLE, "Socket closed")

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Take numbers from one end until it closes."""
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                arrived = self._waiting.get(int(line))
                if arrived is not None and not arrived.done():
                    arrived.set_result(None)
        self.end()

    def end(self) -> None:
        self.ended.set()
        for arrived in self._waiting.values():
            if not arrived.done():
                arrived.set_result(None)
        for writer in self.writers.values():
            writer.close()


class Relays:
    """The relays of a run, and all that is dialled through them.

    Args:
        run: the run.
        rng: draws which of a site's parked connections a fault breaks.
    """

    def __init__(self, run: Simulation, rng: random.Random) -> None:
        self._run, self.rng = run, rng
        self._network: Network = run.network
        self.processes: dict[str, Process] = {}
        self.servers: dict[str, RelayServer] = {}
        self.gone: set[str] = set()
        self._listeners: dict[str, Listener] = {}
        self._tunnels: dict[int, Tunnel] = {}
        self._numbers = itertools.count(1)
        self._ports = itertools.cycle(range(40_000, 60_000))

    # --- lives ---
    def start(self, name: str) -> None:
        if name in self.processes:
            return
        self._run.trace(f"relay {name} starts")
        process = self.processes[name] = Process(name, None)
        self._network.machine_is_up(name)
        context: Any = Context
        server = RelayServer(name, context, frozenset(NAMES), connections=CONNECTIONS_MAX)
        self.servers[name] = server
        self._run.loop.create_task(server.start("0.0.0.0", RELAY_PORT), context=process.context())

    def kill(self, name: str, *, power: bool) -> None:
        process = self.processes.pop(name, None)
        if process is None:
            return
        self._run.trace(f"relay {name} is killed")
        process.dead = True
        self._listeners.pop(f"{name}:{RELAY_PORT}", None)
        self._network.down(process, power=power)
        end_process(process)

    def serves(self, site: str) -> bool:
        """Whether a new caller could reach the site: it needs no relay, or has a connection parked at one that runs."""
        if site not in self._run.shape.relayed:
            return True
        running = [*self.processes, self._run.shape.relaying]
        waiting = [parked for name in running for parked in self._parked_at(name).get(site, ())]
        return any(not cast(StreamEnd, parked.ends[1].transport).silent for parked in waiting)

    def _parked_at(self, relay: str) -> Mapping[str, Collection[Parked]]:
        """What is parked at a relay, by site; nothing at one that does not run."""
        if relay in self.processes:
            return self.servers[relay]._parked
        site = self._run.sites.get(relay)
        server = None if site is None or site.daemon is None else site.daemon.relay
        return {} if server is None else server._parked

    # --- connections ---
    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Stand in for sockets and TLS, below the relay and the sites' parked connections."""

        def bind(host: str, port: int) -> Listener:
            process = PROCESS.get()
            address = f"{process.site}:{port}"
            listener = self._listeners[address] = Listener(process, lambda: close(address, listener))
            return listener

        def close(address: str, listener: Listener) -> None:
            if self._listeners.get(address) is listener:  # what a process that died does late ends no other's
                del self._listeners[address]

        async def peek(connection: AcceptedSocket) -> ClientHello:
            return connection.hello

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(relay_server, "bind", bind))
            stack.enter_context(mock.patch.object(relay_server, "peek_client_hello", peek))
            stack.enter_context(mock.patch.object(tls, "stream_context", lambda *_: Context()))
            self._run.loop.dial = self._dial_stream
            self._network.relays = self
            yield

    def has(self, address: str) -> bool:
        return address.endswith(f":{RELAY_PORT}")

    async def _dial_stream(
        self, host: str, port: int, *, ssl: Context | None = None, server_hostname: str = ""
    ) -> StreamEnd:
        """A connection of the present process: to its own server, or to a relay for parking."""
        process = PROCESS.get()
        if host == "127.0.0.1":
            return self._reach_own_server(process, f"{process.site}:{port}")
        end, accepted = await self._connect(
            process, f"{host}:{port}", ClientHello(server_hostname, tuple(ssl.protocols))
        )
        await accepted.secured
        end.session = TlsSession(ssl.protocols[0], server_hostname, b"")
        return end

    async def _connect(self, process: Process, address: str, hello: ClientHello) -> tuple[StreamEnd, AcceptedSocket]:
        """A connection that the relay at an address has accepted, or will once it can."""
        host = address.rpartition(":")[0]
        forth, back = self._network.link(process.site, host), self._network.link(host, process.site)
        await asyncio.sleep(forth.delay_s + back.delay_s + self._network.rng.random() * forth.jitter_s)
        while forth.cut or back.cut or (self._listener(address) is None and self._network.is_dark(host)):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        listener = self._listener(address)
        if listener is None:
            raise ConnectionRefusedError("Connection refused")
        source = f"10.0.0.{NAMES.index(process.site) + 1}", next(self._ports)
        end, theirs = StreamEnd.pair(self._network, (process, source), (listener.process, (host, RELAY_PORT)))
        secured = asyncio.get_running_loop().create_future()
        accepted = AcceptedSocket(theirs, hello, self._network.certificate(process.site), secured)
        listener.queue.put_nowait((accepted, source))
        return end, accepted

    def _listener(self, address: str) -> Listener | None:
        """Who listens at an address; a process that died does no more."""
        listener = self._listeners.get(address)
        return None if listener is None or listener.process.dead else listener

    def _reach_own_server(self, process: Process, address: str) -> StreamEnd:
        server = self._network.servers.get(address)
        if server is None:
            raise ConnectionRefusedError("Connection refused")
        port = next(self._ports)
        end, theirs = StreamEnd.pair(self._network, (process, ("127.0.0.1", port)), (server.process, ("127.0.0.1", 0)))
        self._run.loop.create_task(self._serve(server, theirs, port), context=server.process.context())
        return end

    async def _serve(self, server: SimulatedServer, end: StreamEnd, port: int) -> None:
        """The server's end of a caller's connection."""
        reader, writer = await stream_pair(end)
        with contextlib.suppress(OSError):
            number = await reader.readline()
            if not number:
                writer.close()
                return
            tunnel = self._tunnels[int(number)]
            tunnel.server, tunnel.port, tunnel.writers[False] = server, port, writer
            writer.write(server.process.site.encode() + b"\n")
            await tunnel.read(reader)

    async def through(self, process: Process, address: str, name: str) -> Tunnel:
        """A channel's connection to the site of a name, which the relay at an address has."""
        try:
            async with asyncio.timeout(limits.HELLO_TIMEOUT_S):
                end, _ = await self._connect(process, address, ClientHello(name, ("h2",)))
                reader, writer = await stream_pair(end)
                number, tunnel = next(self._numbers), Tunnel()
                self._tunnels[number], tunnel.writers[True] = tunnel, writer
                try:
                    writer.write(f"{number}\n".encode())
                    answer = await reader.readline()
                except BaseException:
                    tunnel.end()
                    raise
        except (OSError, TimeoutError) as error:
            raise Failed(STATUS.UNAVAILABLE, f"failed to connect to all addresses: {error}") from None
        if not answer.endswith(b"\n"):
            tunnel.end()
            raise Failed(STATUS.UNAVAILABLE, f"Ssl handshake failed: {ALERTS.get(answer, 'it ended')}")
        asyncio.get_running_loop().create_task(tunnel.read(reader), context=process.context())
        return tunnel

    def forget_parked(self, relay: str, share: float) -> None:
        """Some of a relay's parked connections end, and nobody hears of it."""
        for waiting in self._parked_at(relay).values():
            for parked in waiting:
                end = cast(StreamEnd, parked.ends[1].transport)
                if self.rng.random() < share:
                    end.silent = end.other.silent = True


def with_relays(rng: random.Random, shape: Shape) -> tuple[Shape, list[Fault]]:
    """The shape as it is; or, now and then, with sites that nobody can dial, and what goes wrong at their relays."""
    if rng.random() > RELAYED_SHARE:
        return shape, []
    relays = RELAYS[: rng.choice((1, 2))]
    relayed = {name for name in NAMES if rng.random() < 0.5} | {rng.choice(shape.names)}
    parks = tuple((name, tuple(rng.sample(relays, rng.randint(1, len(relays))))) for name in sorted(relayed))
    changed = dataclasses.replace(shape, relays=parks, stay=True)
    faults = [
        draw_fault(rng, RELAY_FAULTS, lambda: rng.choice(changed.relay_names), begins=FAULTS_BEGIN)
        for _ in range(rng.randint(1, FAULTS_MAX))
    ]
    return changed, faults


def with_relaying_member(
    rng: random.Random, shape: Shape, acts: Collection[Act], guilty: Collection[str]
) -> tuple[Shape, list[Fault]]:
    """The shape as it is; or, now and then, with an honest member that is the relay of most others, and its faults.

    It is no member that an act concerns: with its end, the others' way would end.
    """
    can = [name for name in shape.names if name not in {*guilty, *(act.subject for act in acts)}]
    if shape.relays or rng.random() > RELAYING_SHARE or not can:
        return shape, []
    relaying = rng.choice(can)
    others = [name for name in NAMES if name != relaying]
    relayed = {name for name in others if rng.random() < 0.7} | {next(n for n in shape.names if n != relaying)}
    parks = tuple((name, (relaying,)) for name in sorted(relayed))
    faults = [
        draw_fault(rng, RELAYING_FAULTS, lambda: relaying, begins=FAULTS_BEGIN)
        for _ in range(rng.randint(1, FAULTS_MAX))
    ]
    return dataclasses.replace(shape, relays=parks, relaying=relaying, stay=True), faults


# --- what goes wrong ---
def relay_killed(run: Simulation, relay: str, fault: Fault) -> Undo:
    """The relay dies, or its machine; it starts again later."""
    run.relays.kill(relay, power=fault.amount < 0.5)
    return lambda: run.relays.start(relay)


def relaying_member_killed(run: Simulation, relay: str, fault: Fault) -> Undo:
    """The member that is a relay dies, or its machine; it starts again later."""
    run.sites[relay].down_s = fault.lasts_s
    run.take_down(run.sites[relay], power=fault.amount < 0.5)
    return lambda: None


def relay_gone(run: Simulation, relay: str, fault: Fault) -> Undo:
    """The relay's machine goes down for good, where each of its sites keeps another."""
    gone = run.relays.gone | {relay}
    if any(gone.issuperset(relays) for relays in run.shape.relayed.values()):
        return relay_killed(run, relay, fault)
    run.relays.gone = gone
    run.relays.kill(relay, power=True)
    return lambda: None


def relay_silent(run: Simulation, relay: str, fault: Fault) -> Undo:
    """The relay stops, and answers nobody."""
    return change_links(run, links_of(run, relay), cut=True)


def relay_slow(run: Simulation, relay: str, fault: Fault) -> Undo:
    return change_links(run, links_of(run, relay), delay_s=fault.amount, jitter_s=2.0 * fault.amount)


def relay_refuses(run: Simulation, relay: str, fault: Fault) -> Undo:
    """The relay's operator takes a site from its list for a while."""
    sites, relayed = frozenset(NAMES), sorted(run.shape.relayed)
    refused = relayed[int(fault.amount * len(relayed))]
    return change(run.relays.servers[relay], "sites", sites - {refused}, mended=sites)


def parked_forgotten(run: Simulation, relay: str, fault: Fault) -> Undo:
    """A firewall forgets parked connections, and neither end hears of it."""
    run.relays.forget_parked(relay, 0.5 + fault.amount)
    return lambda: None


RELAY_FAULTS: Mapping[str, Callable[[Simulation, str, Fault], Undo]] = {
    function.__name__: function
    for function in (relay_killed, relay_gone, relay_silent, relay_slow, relay_refuses, parked_forgotten)
}
RELAYING_FAULTS: Mapping[str, Callable[[Simulation, str, Fault], Undo]] = {
    function.__name__: function for function in (relaying_member_killed, relay_silent, relay_slow, parked_forgotten)
}
"""Of a member that is a relay; as of every member, it can be killed, stopped and restored beside these."""
