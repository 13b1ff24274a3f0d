"""A bare peer to compare with: ``python tests/bench/bare.py HOME FEDERATION SITE MEGABYTES``.

The process serves one artifact as a bare grpc.aio stream over mutual TLS, with the site's own
certificate, and prints ``PORT SHA256``. Its first input line is the JSON object of all peers,
``{site: [port, sha256]}``. Each later line names a site: the process fetches that site's artifact,
only hashes it, and prints a line. With ``SITE keep`` it also writes the artifact to a new file, which
it deletes later. It ends at the end of the input.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from transfer import bare_channel, exchange_stub, start_bare, write_artifact

from peer.core.roster import SiteName
from peer.daemon import startup
from peer.pb import peer_pb2 as pb
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates


async def serve(own: certificates.Identity, scratch: Path, megabytes: int) -> None:
    """Serve one artifact, and fetch those of the sites that the input names."""
    server, port = await start_bare(scratch, own)
    print(port, write_artifact(scratch, megabytes).sha256, flush=True)
    peers = json.loads(sys.stdin.readline())
    stubs = {name: exchange_stub(bare_channel(own, name, peer_port)) for name, (peer_port, _) in peers.items()}
    while line := (await asyncio.to_thread(sys.stdin.readline)).split():
        name, *keep = line
        digest, sha256 = hashlib.sha256(), bytes.fromhex(peers[name][1])
        with (scratch / "received" if keep else Path(os.devnull)).open("wb", buffering=0) as file:
            async for chunk in stubs[name].FetchArtifact(pb.FetchRequest(sha256=sha256)):
                digest.update(chunk.data)
                file.write(chunk.data)
        if digest.digest() != sha256:
            raise ValueError(f"the digest of {name}'s artifact is {digest.hexdigest()}, not {sha256.hex()}")
        print("fetched", flush=True)
        (scratch / "received").unlink(missing_ok=True)
    await server.stop(None)


def main() -> None:
    """Load the site's certificate and serve."""
    home, federation, name, megabytes = sys.argv[1:]
    _, _, own = startup.load(SiteFolder(Path(home), federation, SiteName(name)))
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(serve(own, Path(scratch), int(megabytes)))


if __name__ == "__main__":
    main()
