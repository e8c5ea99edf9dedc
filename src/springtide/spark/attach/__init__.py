"""Scales the executors of any streaming query, by what Spark reports about it."""
