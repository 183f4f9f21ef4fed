"""Symbols that had another name.  Old configurations, records, databases and findings still have it."""

RENAMED = {"REMAKE": "RECOMPUTE", "JOIN_SIBLINGS": "MERGE_LINEARS"}


def current(symbol):
    return RENAMED.get(symbol, symbol)
