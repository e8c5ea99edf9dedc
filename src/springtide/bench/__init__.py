"""Benchmarks of Springtide and hand-written Spark, side by side in the same run."""
