"""The fluent builder: streams, sources and sinks, which make a topology."""
