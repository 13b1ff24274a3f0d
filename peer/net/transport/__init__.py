"""gRPC over mutual TLS between sites, and a client of the control socket. Generated types stop here."""

import os

# A peer that leaves is no error, but gRPC writes a line about it (GOAWAY) to standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
