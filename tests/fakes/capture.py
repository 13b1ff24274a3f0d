"""A packet capture: ``python tests/fakes/capture.py INTERFACE FILE`` writes every frame until it is ended.

``Capture`` puts the TCP streams in such a file together again. A frame that was not captured ends what is
known of its stream.
"""

from __future__ import annotations

import signal
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ALL_PROTOCOLS = 3
"""ETH_P_ALL (Linux, if_ether.h)."""
IPV4, TCP = 0x0800, 6
SYN = 0x02
FRAME_BYTES_MAX = 1 << 18
BUFFER_BYTES = 64 << 20
RECORD_TYPES = range(20, 24)
RECORD_BYTES_MAX = (16 << 10) + 256
"""RFC 8446, 5.2: a record with its padding and tag."""

Stream = tuple[str, int, str, int]
"""Source address and port, then those of the destination."""


@dataclass
class Capture:
    """The content of a file of frames.

    Attributes:
        streams: what was sent in each direction of each TCP connection whose begin was seen.
        others: what was neither TCP nor what machines of one network need to find each other.
    """

    streams: dict[Stream, bytes] = field(default_factory=dict)
    others: int = 0

    @classmethod
    def read(cls, path: Path) -> Capture:
        capture = cls()
        begins: dict[Stream, int] = {}
        pieces: dict[Stream, dict[int, bytes]] = {}
        for frame in _frames(path.read_bytes()):
            if int.from_bytes(frame[12:14], "big") != IPV4:  # ARP, and IPv6's search for neighbours
                continue
            packet = frame[14:]
            if packet[9] != TCP:
                capture.others += 1
                continue
            header, length = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
            segment = packet[header:length] if length else packet[header:]  # 0: the kernel had yet to cut it
            source, target = socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
            ports = struct.unpack_from("!HH", segment)
            stream = (source, ports[0], target, ports[1])
            number = int.from_bytes(segment[4:8], "big")
            if segment[13] & SYN:
                begins[stream] = number + 1
                pieces[stream] = {}
            elif stream in begins and (payload := segment[(segment[12] >> 4) * 4 :]):
                offset = (number - begins[stream]) % (1 << 32)
                pieces[stream][offset] = max(pieces[stream].get(offset, b""), payload, key=len)
        capture.streams = {stream: _join(parts) for stream, parts in pieces.items()}
        return capture

    def holds(self, content: bytes) -> bool:
        return any(content in text for text in self.streams.values())


def records(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each TLS record of a stream, of the last one as much as is known.

    ``ValueError`` where it is anything but TLS.
    """
    offset = 0
    while offset + 5 <= len(stream):
        kind, major, _, length = struct.unpack_from("!BBBH", stream, offset)
        if kind not in RECORD_TYPES or major != 3 or length > RECORD_BYTES_MAX:
            raise ValueError(f"no TLS record after {offset} bytes: {stream[offset : offset + 16]!r}")
        yield kind, stream[offset + 5 : offset + 5 + length]
        offset += 5 + length


def _frames(content: bytes) -> Iterator[bytes]:
    offset = 0
    while offset + 4 <= len(content):
        (size,) = struct.unpack_from("!I", content, offset)
        yield content[offset + 4 : offset + 4 + size]
        offset += 4 + size


def _join(parts: dict[int, bytes]) -> bytes:
    """The bytes from the begin up to the first that is missing."""
    joined = bytearray()
    for offset, payload in sorted(parts.items()):
        if offset > len(joined):
            break
        joined += payload[len(joined) - offset :]
    return bytes(joined)


def main(interface: str, path: str) -> None:
    """Capture until SIGTERM; the line that is printed says that it has begun."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, 33, BUFFER_BYTES)  # SO_RCVBUFFORCE
        wire.bind((interface, 0))
        print("capturing", flush=True)
        with open(path, "wb") as file:
            while True:
                frame = wire.recv(FRAME_BYTES_MAX)
                file.write(struct.pack("!I", len(frame)) + frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
