"""What keeps the servers of the tests; benchmarks use it too."""

from springtide.bench.keeper import Kept, free_ports

__all__ = ["Kept", "free_ports"]
