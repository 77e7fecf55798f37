"""Query plans: which nodes touch which table, and how many rows they really looked at."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from sqlalchemy.sql import ClauseElement

from app.store.engine import Connection, compiled_statement


@dataclass(frozen=True, slots=True)
class Plan:
    """``nodes`` are (node type, table) pairs; ``rows`` counts by table what the scans looked at.

    ``busiest_rows`` is the most that any node handled, joins and CTEs included: what it passed on, dropped or
    compared in vain.
    """

    nodes: frozenset[tuple[str, str]]
    rows: Mapping[str, int]
    busiest_rows: int

    @property
    def row_count(self) -> int:
        return sum(self.rows.values())

    def assert_index_ranges(self, *, max_rows: int) -> None:
        """Hold that no table is read from end to end, and that few rows were looked at."""
        sequential = [table for node, table in self.nodes if node == "Seq Scan"]
        assert not sequential, f"sequential scans of {sequential}"
        assert self.row_count <= max_rows, dict(self.rows)


async def explain(
    conn: Connection, statement: ClauseElement, parameters: Mapping[str, object] | None = None
) -> Plan:
    """Run a statement for its plan, prepared as the service has it; what it wrote is the caller's to undo.

    Parameters that the statement carries already (a composed one does) are taken from it.
    """
    await prepare(conn, statement)
    try:
        return await explain_prepared(conn, statement, parameters)
    finally:
        await conn.run(b"DEALLOCATE explained")


async def prepare(conn: Connection, statement: ClauseElement) -> None:
    """Prepare a statement, as the driver does with one that comes again."""
    await conn.run(f"PREPARE explained AS {compiled_statement(statement)}".encode())


async def explain_prepared(
    conn: Connection, statement: ClauseElement, parameters: Mapping[str, object] | None = None
) -> Plan:
    """Run the statement that was prepared, with the plan that it has or now gets."""
    compiled = compiled_statement(statement)
    values = {**compiled.params, **(parameters or {})}
    arguments = sql.SQL(", ").join(sql.Literal(values[name]) for name in compiled.positiontup or ())
    execute = f"EXECUTE explained({arguments.as_string()})" if compiled.positiontup else "EXECUTE explained"
    answer = await conn.run(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {execute}".encode())
    return _plan(answer[0][0])


def _plan(answer: str) -> Plan:
    # JSON leaves the driver as text: see store.engine.
    nodes = list(_walk(json.loads(answer)[0]["Plan"]))
    rows: Counter[str] = Counter()
    for node in nodes:
        if "Relation Name" in node and "Scan" in node["Node Type"]:
            rows[node["Relation Name"]] += _handled(node)
    touched = frozenset((n["Node Type"], n["Relation Name"]) for n in nodes if "Relation Name" in n)
    return Plan(touched, rows, max(map(_handled, nodes)))


def _handled(node: dict[str, Any]) -> int:
    counters = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
    rows, loops = sum(node.get(name, 0) for name in counters), node["Actual Loops"]
    return round(float(rows * loops))


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _walk(inner)
