"""What a site is and what it remembers: configuration, identity, membership, records."""
