"""All queries by their names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millpond.workloads.queries.bids import BIDS
from millpond.workloads.queries.joins import JOINS
from millpond.workloads.queries.papers import PAPERS
from millpond.workloads.queries.query import PaperQuery
from millpond.workloads.queries.remaining import REMAINING

__all__ = ["QUERIES"]


def _nexmark_first(query: PaperQuery) -> tuple[bool, int, str]:
    number = query.name.partition("-")[0].removeprefix("q")
    return not number.isdigit(), int(number) if number.isdigit() else 0, query.name


QUERIES: Mapping[str, PaperQuery] = MappingProxyType(
    {query.name: query for query in sorted((*BIDS, *JOINS, *PAPERS, *REMAINING), key=_nexmark_first)}
)
