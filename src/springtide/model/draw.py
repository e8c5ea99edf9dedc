"""A topology as text and as a Mermaid graph."""

from __future__ import annotations

from springtide.model.topology import Kind, Operator, Topology


def _edge_label(operator: Operator) -> str:
    if operator.chained:
        return "forward"
    key = f"({', '.join(operator.key)})" if operator.key else ""
    return f"{operator.grouping}{key}"


def _shape(operator: Operator) -> tuple[str, str]:
    if operator.kind is Kind.SOURCE:
        return "([", "])"
    if operator.kind is Kind.SINK:
        return "[(", ")]"
    return "[", "]"


def as_mermaid(topology: Topology) -> str:
    """The graph in Mermaid's flowchart notation; thick edges are shuffles."""
    number = {operator.name: f"n{i}" for i, operator in enumerate(topology)}
    lines = ["flowchart LR"]
    for operator in topology:
        opening, closing = _shape(operator)
        lines.append(f'  {number[operator.name]}{opening}"{operator.name}"{closing}')
    for operator in topology:
        for source in operator.inputs:
            arrow = "-->" if operator.chained else f'== "{_edge_label(operator)}" ==>'
            lines.append(f"  {number[source]} {arrow} {number[operator.name]}")
    return "\n".join(lines)


def as_text(topology: Topology) -> str:
    """A line for each operator, indented below its input; ``→`` runs in the same task, ``⇒`` is a shuffle."""
    lines = [topology.name]
    drawn: set[str] = set()

    def draw(operator: Operator, indent: str) -> None:
        limit = f" ≤{operator.parallelism}" if operator.parallelism else ""
        what = type(operator.source or operator.sink).__name__ if operator.source or operator.sink else operator.kind
        mark = "●" if not operator.inputs else "→" if operator.chained else f"⇒ {_edge_label(operator)}"
        again = operator.name in drawn
        fields = "" if operator.schema is None or again else f"  ({', '.join(operator.schema.names)})"
        lines.append(f"{indent}{mark} {operator.name} [{what}{limit}]{fields}{' (see above)' if again else ''}")
        drawn.add(operator.name)
        if not again:
            for consumer in topology.consumers[operator.name]:
                draw(consumer, indent + "  ")

    for source in topology.sources:
        draw(source, "  ")
    return "\n".join(lines)
