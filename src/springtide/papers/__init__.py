"""The papers' experiments, repeated in the simulator, next to the published numbers."""
