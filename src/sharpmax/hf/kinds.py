"""What kind of head a head is, by what it does at the longest length it was looked at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharpmax.hf.diagnose import Diagnosis, Head

KINDS = {
    "sink": "half of the weight or more is on the first token",
    "local": "half or more is on the 32 last tokens",
    "sharp": "half or more is on one other token",
    "disperses": "its entropy follows the length, at half of ln n or faster",
    "steady": "spread out, and slower to spread further",
}
HALF = 0.5

Place = tuple[str, int, int]
"""Of a case, a layer and a head."""


def kinds(diagnosis: Diagnosis) -> dict[Place, str]:
    """Return the kind of every head of every case."""
    by_place: dict[Place, list[Head]] = {}
    for head in diagnosis.heads:
        by_place.setdefault((head.case, head.layer, head.head), []).append(head)
    return {place: _kind(heads) for place, heads in by_place.items()}


def _kind(heads: list[Head]) -> str:
    """Return the kind of one head, which was looked at once for each length."""
    shortest, longest = (choose(heads, key=lambda head: head.length) for choose in (min, max))
    if longest.first >= HALF:
        return "sink"
    if longest.near >= HALF:
        return "local"
    if longest.largest >= HALF:
        return "sharp"
    return "disperses" if growth(shortest, longest) >= HALF else "steady"


def growth(shortest: Head, longest: Head) -> float:
    """Return how fast the entropy follows ln n: 1 if weights stay as even as they are.

    Of one length alone, it is the entropy's share of ln n.
    """
    if shortest.length == longest.length:
        return longest.share
    stretch = math.log(longest.length / shortest.length)
    return (longest.entropy - shortest.entropy) / stretch
