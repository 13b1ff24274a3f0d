"""What commands print with ``--json``: a typed record for each document, whose keys carry their meaning."""
