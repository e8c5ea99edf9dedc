"""Frozen values: topologies, measurements, requests and plans."""
