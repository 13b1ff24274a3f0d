"""Relays: reverse tunnels to sites behind a firewall, which a relay carries without reading them.

A site *parks* connections at a relay. The relay looks at the first message of each caller, which names the site, and
joins the caller to one of the site's parked connections. The mutual TLS of the two sites passes through it unopened.
proto/README.md has the protocol.
"""
