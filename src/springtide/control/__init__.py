"""The control flow: monitor → analyze → plan → execute, talking to the world through ports only."""
