"""gRPC's two sides of the service ``Exchange``, without the daemon's client and server."""

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from peer.net.transport.server import SERVICE
from peer.pb import peer_pb2 as pb


def exchange_stub(channel: grpc.aio.Channel) -> Any:
    """The calls of the service as functions, by name."""
    calls = {}
    for method in pb.DESCRIPTOR.services_by_name["Exchange"].methods:
        call = channel.unary_stream if method.server_streaming else channel.unary_unary
        calls[method.name] = call(
            f"/{SERVICE}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
    return SimpleNamespace(**calls)


def serve_artifacts(server: grpc.aio.Server, answer: Callable[..., AsyncIterator[pb.Chunk]]) -> None:
    """Let a server answer ``FetchArtifact``, and no other call."""
    handler = grpc.unary_stream_rpc_method_handler(
        answer, request_deserializer=pb.FetchRequest.FromString, response_serializer=pb.Chunk.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"FetchArtifact": handler}),))
