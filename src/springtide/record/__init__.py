"""The record of a run: a folder with a report of every batch, every decision with its reason, and the totals."""
