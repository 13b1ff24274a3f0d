"""What peers get from a serving site, over real TLS on loopback."""

from __future__ import annotations


async def test_a_peer_fetches_what_another_published(world, wanted):
    europe, africa = await world.serve("europe"), world.dial("africa")
    sample = world.sample()
    europe.desk.publish(sample)
    offer = await africa.get_manifest(europe.name, wanted(), wait_s=0.0)
    path = await africa.fetch(offer, world.inbox())
    assert path.read_bytes() == sample.path.read_bytes()
    assert path.name == f"{sample.artifact.sha256}.safetensors"
    assert europe.desk.ledger == [
        ("intent", "africa", sample.artifact.sha256, 0),
        ("outcome", 1, sample.artifact.bytes, "complete"),
    ]
