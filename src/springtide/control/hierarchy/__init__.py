"""EDF's hierarchical control: managers of operators and nodes propose, the manager of the application grants."""

from springtide.control.hierarchy.hierarchy import Hierarchy

__all__ = ["Hierarchy"]
