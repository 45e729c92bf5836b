"""Shares of right answers, and how sure they are."""

from scipy import stats


def interval(right: int, asked: int) -> dict[str, float]:
    """Return the ends of a share's 95 % interval, by Wilson: low and high."""
    found = stats.binomtest(right, asked).proportion_ci(method="wilson")
    return {"low": float(found.low), "high": float(found.high)}
