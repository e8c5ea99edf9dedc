"""The run's record: one folder with what every batch did, what was decided and why, and the totals."""
