"""gRPC's health service (grpc.health.v1): on the control socket for the operator, and for peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc as rpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

Services = Mapping[str, Callable[[], bool]]
"""For every service whether it is healthy; "" is the whole server."""
SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


class HealthGuard(Protocol):
    """Admits calls; ``peer.transport.server.CallGuard``."""

    def admit(
        self, context: Context, call: str, request: Any, decode: Callable[[Any], Any]
    ) -> AbstractAsyncContextManager[Any]:
        """Enter the block that answers the call, or end the call."""


class Health(rpc.HealthServicer):  # type: ignore[misc]  # the package has no types
    """Answers ``Check``. ``Watch`` is not offered; gRPC's clients then stop asking."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:  # noqa: N802
        """Whether a service is healthy; NOT_FOUND for an unknown one."""
        healthy = self._services.get(request.service)
        if healthy is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:100]!r}")
        return pb.HealthCheckResponse(status=SERVING if healthy() else NOT_SERVING)


class GuardedHealth(Health):
    """Answers peers only."""

    def __init__(self, services: Services, guard: HealthGuard) -> None:
        super().__init__(services)
        self._guard = guard

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:  # noqa: N802
        async with self._guard.admit(context, "health Check", request, lambda message: message):
            pass  # answer outside: the guard would log `abort` in the block as a fault of this site
        return await super().Check(request, context)


def serving(channel: grpc.Channel, service: str = "", *, timeout_s: float) -> bool:
    """Whether the service behind a channel is healthy; ``grpc.RpcError`` when no server answers."""
    stub = rpc.HealthStub(channel)
    answer: pb.HealthCheckResponse = stub.Check(pb.HealthCheckRequest(service=service), timeout=timeout_s)
    return bool(answer.status == SERVING)
