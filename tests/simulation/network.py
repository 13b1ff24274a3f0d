"""The network between sites: gRPC's client and server in memory, with real messages.

Requests and answers are serialized and parsed by the functions that gRPC would call. A link delays,
loses and cuts; as with TCP, what arrives on one stream arrives whole and in order, a lost message
breaks its call, and a client that calls again repeats a request that may have been served. The
caller's name comes from its certificate, as after a TLS handshake. A channel to a relay's address
runs through one of ``simulation.relays``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import grpc

from peer.daemon.heartbeat import Heartbeats
from peer.net.transport import server as peer_server
from simulation.loop import PROCESS, Process

if TYPE_CHECKING:
    from simulation.invariants import Referee
    from simulation.programs import Program
    from simulation.relays import Relays, Tunnel
    from simulation.streams import StreamEnd

STATUS = grpc.StatusCode
KEEPALIVE_S = 10.0  # until both ends notice a cut line, as with peer.net.transport.tls
WINDOW_BYTES = 256 << 10
CREDENTIALS = ("dynamic_ssl_server_credentials", "ssl_server_certificate_configuration")


class Connections:
    """In place of the guard of TCP connections, of which there are none here."""

    def do_nothing(self, *args: Any, **options: Any) -> None:
        pass

    __init__ = start = stop = admitted = refused = dismiss = do_nothing


class Failed(grpc.aio.AioRpcError):
    """A call's status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


@dataclass
class Link:
    """One direction between two sites."""

    delay_s: float = 0.01
    jitter_s: float = 0.02
    loss: float = 0.0
    repeat: float = 0.0
    cut: bool = False


@dataclass
class Network:
    """All links, and the servers by address.

    Args:
        rng: decides delays and losses.
        certificate: the certificate in a site's folder now, in PEM.
        program: the version of the program that a site runs.
        observer: sees every message, changes those of liars, and hears how each call ended.
    """

    rng: random.Random
    certificate: Callable[[str], bytes]
    observer: Referee
    program: Callable[[str], Program | None]
    relays: Relays | None = None
    servers: dict[str, SimulatedServer] = field(default_factory=dict)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    _dark: dict[str, list[StreamEnd]] = field(default_factory=dict)

    def message(self, sender: str, receiver: str, path: str, part: str, data: bytes, request: bytes = b"") -> bytes:
        """The bytes of a message as its receiver reads them; ``request`` is what it answers."""
        data = self.observer.message(sender, receiver, path, part, data, request)
        for program in (self.program(sender), self.program(receiver)):
            if program is not None:
                data = program.read(path, data)
        return data

    def link(self, sender: str, receiver: str) -> Link:
        return self.links.setdefault((sender, receiver), Link())

    async def carry(self, sender: str, receiver: str) -> None:
        """Wait as long as a message takes; ``Failed`` where it is lost."""
        link = self.link(sender, receiver)
        await asyncio.sleep(link.delay_s + self.rng.random() * link.jitter_s)
        if link.cut:
            await asyncio.sleep(KEEPALIVE_S)
            raise Failed(STATUS.UNAVAILABLE, "keepalive watchdog timeout")
        if link.loss and self.rng.random() < link.loss:
            raise Failed(STATUS.UNAVAILABLE, "Socket closed")

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Stand in for gRPC's servers and channels."""

        def server(*args: Any, **options: Any) -> SimulatedServer:
            return SimulatedServer(self)

        def channel(address: str, credentials: Any, options: Any = (), **more: Any) -> SimulatedChannel:
            host = address.rpartition(":")[0]
            name = dict(options).get("grpc.ssl_target_name_override", host)
            return SimulatedChannel(self, address, name, credentials)

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(grpc.aio, "server", server))
            stack.enter_context(mock.patch.object(grpc.aio, "secure_channel", channel))
            stack.enter_context(mock.patch.object(peer_server, "ConnectionGuard", Connections))
            # It dials beside gRPC, in a real thread, to word what the simulated network has already said.
            stack.enter_context(mock.patch.object(Heartbeats, "_diagnose_failure", lambda self, peer, address: None))
            stack.enter_context(mock.patch.object(grpc, "ssl_channel_credentials", lambda roots, key, chain: chain))
            for name in CREDENTIALS:
                stack.enter_context(mock.patch.object(grpc, name, lambda *_, **__: None))
            yield

    def down(self, process: Process, *, power: bool = False) -> None:
        """The process has died, with ``power`` its machine: its server answers no more."""
        for address, server in list(self.servers.items()):
            if server.process is process:
                del self.servers[address]
                server.break_calls()
        ends = list(process.ends)
        if power:
            self._dark.setdefault(process.site, []).extend(ends)
        for end in ends:
            end.die(power=power)

    def is_dark(self, name: str) -> bool:
        """Whether the machine is down, so that nothing refuses a connection."""
        return name in self._dark

    def machine_is_up(self, name: str) -> None:
        """A machine that was down knows no connection of before, and says so when it hears of one."""
        for end in self._dark.pop(name, ()):
            end.silent = False


class SimulatedServer:
    """In place of ``grpc.aio.Server``."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._handlers: list[Any] = []
        self._address = ""
        self._calls: dict[asyncio.Task[Any], None] = {}
        self.process = PROCESS.get()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers += handlers

    def add_secure_port(self, address: str, credentials: Any) -> int:
        port = address.rpartition(":")[2]
        self._address = f"{self.process.site}:{port}"
        return int(port)

    async def start(self) -> None:
        self._network.servers[self._address] = self

    async def stop(self, grace: float | None) -> None:
        if self._network.servers.get(self._address) is self:  # what a process that died does late ends no other's
            del self._network.servers[self._address]
        calls = list(self._calls)
        self.break_calls()
        await asyncio.gather(*calls, return_exceptions=True)

    def break_calls(self) -> None:
        for call in list(self._calls):
            call.cancel()

    def handler(self, path: str) -> Any:
        for handler in self._handlers:
            method = handler.service(SimpleNamespace(method=path, invocation_metadata=()))
            if method is not None:
                return method
        raise Failed(STATUS.UNIMPLEMENTED, "Method not found!")

    def serve(self, path: str, request: bytes, context: SimulatedContext) -> asyncio.Task[Any]:
        """Answer a call in the server's own process."""
        process_context = self.process.context()
        task = asyncio.get_running_loop().create_task(self._answer(path, request, context), context=process_context)
        self._calls[task] = None
        task.add_done_callback(lambda task: self._calls.pop(task, None))
        return task

    async def _answer(self, path: str, data: bytes, context: SimulatedContext) -> bytes | None:
        try:
            if self.process.program is not None:
                self.process.program.check_call(path)
            method = self.handler(path)
            if method.response_streaming:
                await method.stream_stream(_one(data), context)
                return None
            return context.leave("answer", await method.stream_unary(_one(data), context))
        except grpc.aio.AbortError:
            raise Failed(context.code, context.details) from None
        except Failed:
            raise
        except Exception as error:  # as gRPC does
            raise Failed(STATUS.UNKNOWN, f"Unexpected {type(error)}: {error}") from error


async def _one(request: bytes) -> AsyncIterator[bytes]:
    """The request as a handler reads it."""
    yield request


class SimulatedContext:
    """In place of ``grpc.aio.ServicerContext``."""

    def __init__(self, call: Call) -> None:
        self._call, self._network = call, call.network
        self.code, self.details = STATUS.UNKNOWN, ""
        self.chunks: asyncio.Queue[bytes | Failed] = asyncio.Queue()
        self._ahead, self._taken = 0, asyncio.Event()

    def auth_context(self) -> dict[str, Any]:
        return {
            "x509_pem_cert": [self._call.pem],
            "x509_subject_alternative_name": [self._call.caller.encode()],
        }

    def peer(self) -> str:
        tunnel = self._call.tunnel
        return "ipv4:10.0.0.1:7443" if tunnel is None else f"ipv4:127.0.0.1:{tunnel.port}"

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.code, self.details = code, details
        raise grpc.aio.AbortError("Locally aborted.")

    def leave(self, part: str, data: bytes) -> bytes:
        call = self._call
        return self._network.message(call.callee, call.caller, call.path, part, data, call.request)

    async def write(self, message: bytes) -> None:
        """Send a chunk; waits while the receiver has not taken what was sent before."""
        data = self.leave("chunk", message)
        self._network.observer.serves(self._call.callee, self._call.caller, self._call.pem)
        await self._call.carry(forth=False)
        self.chunks.put_nowait(data)
        self._ahead += len(data)
        while self._ahead > WINDOW_BYTES:
            self._taken.clear()
            await self._taken.wait()

    def take(self, data: bytes) -> None:
        self._ahead -= len(data)
        self._taken.set()


@dataclass
class Call:
    """One call: its ends, certificate, request as it arrives, and connection, where that runs through a relay."""

    network: Network
    caller: str
    callee: str
    path: str
    pem: bytes
    tunnel: Tunnel | None
    request: bytes = b""

    async def carry(self, *, forth: bool) -> None:
        """Wait as long as a message takes; ``Failed`` where it is lost."""
        if self.tunnel is not None:
            await self.tunnel.carry(forth=forth)
        elif forth:
            await self.network.carry(self.caller, self.callee)
        else:
            await self.network.carry(self.callee, self.caller)


class SimulatedChannel:
    """In place of ``grpc.aio.Channel``; ``name`` is the site that its certificate must show."""

    def __init__(self, network: Network, address: str, name: str, pem: bytes) -> None:
        self._network, self._address, self._name, self._pem = network, address, name, pem
        self._process = PROCESS.get()
        self._tunnel: Tunnel | None = None
        self._dialling = asyncio.Lock()

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **options: Any) -> Any:
        async def call(request: Any, timeout: float | None = None) -> Any:
            data = request_serializer(request)
            return response_deserializer(await self._unary(path, data, timeout))

        return call

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **options: Any) -> Any:
        def call(request: Any, timeout: float | None = None) -> StreamCall:
            return StreamCall(self._stream(path, request_serializer(request)), response_deserializer)

        return call

    async def close(self, grace: float | None = None) -> None:
        if self._tunnel is not None:
            self._tunnel.end()

    async def _connect(self, path: str) -> tuple[SimulatedServer, Call]:
        self._process.check()
        tunnel: Tunnel | None = None
        if self._network.relays is not None and self._network.relays.has(self._address):
            tunnel = await self._tunnel_to(self._network.relays)
            server = tunnel.server
        else:
            server = self._network.servers.get(self._address)
        if server is None:
            await asyncio.sleep(self._network.link(self._process.site, self._name).delay_s)
            raise Failed(STATUS.UNAVAILABLE, "failed to connect to all addresses: Connection refused")
        if server.process.site != self._name:
            raise Failed(STATUS.UNAVAILABLE, f"Hostname Verification Check failed: {server.process.site}")
        return server, Call(self._network, self._process.site, self._name, path, self._pem, tunnel)

    async def _tunnel_to(self, relays: Relays) -> Tunnel:
        """The channel's connection through a relay, which all of its calls share."""
        async with self._dialling:
            if self._tunnel is None or self._tunnel.ended.is_set():
                self._tunnel = await relays.through(self._process, self._address, self._name)
            return self._tunnel

    def _check(self, server: SimulatedServer) -> None:
        """The server may have gone while the request was on its way."""
        if server not in self._network.servers.values():
            raise Failed(STATUS.UNAVAILABLE, "Connection reset by peer")

    async def _unary(self, path: str, data: bytes, timeout: float | None) -> bytes:
        caller, callee, network = self._process.site, self._name, self._network
        status = "OK"
        try:
            async with asyncio.timeout(timeout):
                server, call = await self._connect(path)
                data = call.request = network.message(caller, callee, path, "request", data)
                await call.carry(forth=True)
                self._check(server)
                if network.link(caller, callee).repeat > network.rng.random():
                    server.serve(path, data, SimulatedContext(call))  # nobody waits for it
                serving = server.serve(path, data, SimulatedContext(call))
                answer = await self._result(serving)
                await call.carry(forth=False)
                return answer
        except TimeoutError:
            status = "DEADLINE_EXCEEDED"
            raise Failed(STATUS.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        except Failed as failure:
            status = failure.code().name
            raise
        finally:
            network.observer.called(caller, callee, path, status)

    async def _result(self, serving: asyncio.Task[Any]) -> Any:
        """The server's answer; a caller that goes away cancels the call there."""
        try:
            await asyncio.wait([serving])
        finally:
            serving.cancel()
        if serving.cancelled() or ((error := serving.exception()) is not None and not isinstance(error, Exception)):
            raise Failed(STATUS.UNAVAILABLE, "Connection reset by peer")
        if error is not None:
            raise Failed(error.code(), error.details()) if isinstance(error, Failed) else error
        return serving.result()

    async def _stream(self, path: str, data: bytes) -> AsyncIterator[bytes]:
        caller, callee, network = self._process.site, self._name, self._network
        server, call = await self._connect(path)
        data = call.request = network.message(caller, callee, path, "request", data)
        await call.carry(forth=True)
        self._check(server)
        context = SimulatedContext(call)
        serving = server.serve(path, data, context)
        serving.add_done_callback(lambda _: context.chunks.put_nowait(Failed(STATUS.OK, "")))
        try:
            while not isinstance(chunk := await context.chunks.get(), Failed):
                context.take(chunk)
                yield chunk
            await self._result(serving)
        finally:
            serving.cancel()


class StreamCall:
    """In place of ``grpc.aio.UnaryStreamCall``."""

    def __init__(self, chunks: AsyncIterator[bytes], deserialize: Callable[[bytes], Any]) -> None:
        self._chunks, self._deserialize = chunks, deserialize

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for chunk in self._chunks:
            yield self._deserialize(chunk)

    def cancel(self) -> None:
        self._closing = asyncio.ensure_future(self._chunks.aclose())  # type: ignore[attr-defined]
