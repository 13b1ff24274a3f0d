"""gRPC's health service (grpc.health.v1) on the control socket, for the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc as rpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

Services = Mapping[str, Callable[[], bool]]
"""For every service whether it is healthy; "" is the whole server."""
SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


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

    async def Watch(self, request: pb.HealthCheckRequest, context: Context) -> None:  # noqa: N802
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this daemon answers Check only")


def serving(channel: grpc.Channel, service: str = "", *, timeout_s: float) -> bool:
    """Whether the service behind a channel is healthy; ``grpc.RpcError`` when no server answers."""
    stub = rpc.HealthStub(channel)
    answer: pb.HealthCheckResponse = stub.Check(pb.HealthCheckRequest(service=service), timeout=timeout_s)
    return bool(answer.status == SERVING)
