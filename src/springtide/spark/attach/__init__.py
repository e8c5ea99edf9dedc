"""Scaling the executors under a query that somebody else wrote, from what Spark tells of it."""
