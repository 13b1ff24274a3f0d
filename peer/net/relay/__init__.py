"""Relays: how sites that nobody can dial are reached, without a relay reading what it carries.

A site *parks* connections at a relay. The relay looks at the first message of each caller, which
names the site, and joins the caller to one of the site's parked connections. The mutual TLS of the
two sites runs through it unopened. proto/README.md has the protocol.
"""
