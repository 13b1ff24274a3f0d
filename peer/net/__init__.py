"""What crosses the wire: gRPC over mutual TLS, and relays."""
