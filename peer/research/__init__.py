"""The federation on one machine: the same state machines, methods and artifact files; time and network in memory."""
