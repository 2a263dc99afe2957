"""Answers of some queries in plain Python, by what their titles say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from tests.query_streams import FAR

Rows = Mapping[str, pa.Table]
Window = tuple[datetime, datetime]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def windows(at: datetime, size_s: int, slide_s: int) -> Iterator[Window]:
    size, slide = timedelta(seconds=size_s), timedelta(seconds=slide_s)
    start = at - (at - _EPOCH) % slide
    while start > at - size:
        yield start, start + size
        start -= slide


def q5(rows: Rows) -> list[Any]:
    counts = Counter(
        (window, bid["auction"]) for bid in rows["bids"].to_pylist() for window in windows(bid["ts"], 10, 5)
    )
    top: dict[Window, tuple[int, int]] = {}
    for (window, auction), count in counts.items():
        top[window] = max(top.get(window, (0, 0)), (count, auction))
    return [(window, count, auction) for window, (count, auction) in top.items()]


def q7(rows: Rows) -> list[Any]:
    highest: dict[tuple[Window, int], int] = defaultdict(int)
    for bid in rows["bids"].to_pylist():
        (window,) = windows(bid["ts"], 10, 10)
        highest[window, bid["bidder"]] = max(highest[window, bid["bidder"]], bid["price"])
    return [(window, bidder, price) for (window, bidder), price in highest.items()]


def q9(rows: Rows) -> list[Any]:
    found = []
    bids = [bid for bid in rows["bids"].to_pylist() if bid["ts"] < FAR]
    for auction in rows["auctions"].to_pylist():
        in_time = [
            bid
            for bid in bids
            if bid["auction"] == auction["id"] and auction["ts"] <= bid["ts"] <= auction["expires"]
        ]
        if in_time:
            best = min(in_time, key=lambda bid: (-bid["price"], bid["ts"], bid["bidder"]))
            columns = [auction[name] for name in ("id", "name", "seller", "category", "ts", "expires")]
            found.append((*columns, best["price"], best["bidder"], best["ts"]))
    return found


def q11(rows: Rows) -> list[Any]:
    times: dict[int, list[datetime]] = defaultdict(list)
    for bid in rows["bids"].to_pylist():
        times[bid["bidder"]].append(bid["ts"])
    gap = timedelta(seconds=10)
    found = []
    for bidder, of_bidder in times.items():
        sessions: list[list[datetime]] = []
        for at in sorted(of_bidder):
            if not sessions or at >= sessions[-1][-1] + gap:
                sessions.append([])
            sessions[-1].append(at)
        found += [((one[0], one[-1] + gap), bidder, len(one)) for one in sessions]
    return found


def q12(rows: Rows) -> list[Any]:
    return list(Counter(rows["bids"]["bidder"].to_pylist()).items())


def q18(rows: Rows) -> list[Any]:
    last: dict[tuple[int, int], Any] = {}
    for bid in rows["bids"].to_pylist():
        key, value = (bid["auction"], bid["bidder"]), (bid["ts"], bid["price"], bid["extra"])
        last[key] = max(last.get(key, value), value)
    return [(*key, *value) for key, value in last.items()]


def q19(rows: Rows) -> list[Any]:
    of_auction: dict[int, list[Any]] = defaultdict(list)
    for bid in rows["bids"].to_pylist():
        of_auction[bid["auction"]].append(tuple(bid[name] for name in ("price", "ts", "bidder", "extra")))
    return [
        (auction, rank, *bid)
        for auction, bids in of_auction.items()
        for rank, bid in enumerate(sorted(bids, reverse=True)[:10], start=1)
    ]


def readwrite(rows: Rows) -> list[Any]:
    paddings: dict[int, list[str]] = defaultdict(list)
    for record in rows["records"].to_pylist():
        paddings[record["id"]].append(record["padding"])
    return [(key, len(values), max(values)) for key, values in paddings.items()]


def lr4(rows: Rows) -> list[Any]:
    counts = Counter(
        (window, report["highway"], report["direction"], report["position"] // 5280)
        for report in rows["positions"].to_pylist()
        for window in windows(report["ts"], 20, 5)
    )
    return [(*key, count) for key, count in counts.items()]


def cm1(rows: Rows) -> list[Any]:
    """In the order of the sums."""
    totals: dict[tuple[Window, int], float] = defaultdict(float)
    for task in rows["tasks"].to_pylist():
        for window in windows(task["ts"], 60, 10):
            totals[window, task["category"]] += task["cpu"]
    found = [(window, category, cpu) for (window, category), cpu in totals.items()]
    return sorted(found, key=lambda row: (row[2], row[1], row[0]))


def logistics(rows: Rows) -> list[Any]:
    orders: dict[int, Any] = {}
    for order in rows["orders"].to_pylist():
        orders.setdefault(order["order_id"], order)
    return [
        (*order.values(), update["status"], update["depot"], update["ts"])
        for update in rows["shipments"].to_pylist()
        if (order := orders.get(update["order_id"])) and order["ts"] <= update["ts"]
    ]
