"""The control flow: monitor → analyze → plan → execute. It reaches the outside through ports only."""
