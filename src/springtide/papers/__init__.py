"""The papers' own experiments, measured again in the simulator, beside the numbers that were published."""
