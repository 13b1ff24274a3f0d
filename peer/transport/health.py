"""gRPC's health service (grpc.health.v1): on the control socket for the operator, and for peers behind the door."""

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
"""Of every service whether it is well; "" is the whole server."""
SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


class HealthGuard(Protocol):
    """What a call passes before it is answered."""

    def visit(
        self, context: Context, call: str, request: Any, decode: Callable[[Any], Any]
    ) -> AbstractAsyncContextManager[Any]:
        """Answer in this block, or end the call."""


class Health(rpc.HealthServicer):  # type: ignore[misc]  # the package has no types
    """Answers ``Check`` from what is so now; ``Watch`` is not offered, and gRPC's clients then ask no more."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:  # noqa: N802
        """Whether a service is well; NOT_FOUND for one that there is not."""
        well = self._services.get(request.service)
        if well is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:100]!r}")
        return pb.HealthCheckResponse(status=SERVING if well() else NOT_SERVING)


class GuardedHealth(Health):
    """The same for peers alone."""

    def __init__(self, services: Services, door: HealthGuard) -> None:
        super().__init__(services)
        self._door = door

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:  # noqa: N802
        async with self._door.visit(context, "health Check", request, lambda message: message):
            pass  # the answer is given outside: the door takes an end of the call within it for a fault of this site
        return await super().Check(request, context)


def serving(channel: grpc.Channel, service: str = "", *, timeout_s: float) -> bool:
    """Whether the service behind a channel says that it is well; ``grpc.RpcError`` where nobody answers."""
    stub = rpc.HealthStub(channel)
    answer: pb.HealthCheckResponse = stub.Check(pb.HealthCheckRequest(service=service), timeout=timeout_s)
    return bool(answer.status == SERVING)
