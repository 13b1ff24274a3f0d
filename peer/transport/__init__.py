"""Edge 1: gRPC over mutual TLS between sites, and the operator's control socket. Generated types stop here."""

import os

# A peer that leaves is no error: gRPC's own account of it (a GOAWAY on standard error) only hides what matters.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
