"""Ready topologies, on generated data."""
