"""What a diagnosis found, in a sentence a case, and the heads that grow blurred the most."""

from collections import Counter

from sharpmax.report.diagnosis.heads import Heads, half_length_text
from sharpmax.report.page import Table
from sharpmax.report.rows import mean, text

MOST = 10


def finding(heads: Heads) -> str:
    """Return what the heads of each case do at its longest length, and how their entropy grew."""
    return "\n\n".join(_sentence(heads, case) for case in heads.cases)


def growth_table(heads: Heads, case: str) -> Table:
    """Return a case's ten heads whose entropy grows most from its shortest to its longest length.

    With one length alone they are those of the highest entropy.
    """
    lengths = heads.lengths_of(case)
    ends = list(dict.fromkeys((lengths[0], lengths[-1])))
    entropy = [
        {(row["layer"], row["head"]): row["entropy"] or 0.0 for row in heads.at(case, length)}
        for length in ends
    ]
    grown = sorted(
        heads.at(case, lengths[-1]),
        key=lambda row: _growth([at.get((row["layer"], row["head"]), 0.0) for at in entropy]),
        reverse=True,
    )[:MOST]
    what = "grows most" if len(ends) > 1 else "is highest"
    return Table(
        caption=f"Heads whose entropy {what}; spread and half-length at {lengths[-1]:,} tokens",
        header=[
            "head",
            "kind",
            *(f"nats at {length:,}" for length in ends),
            "spread δ",
            "half-length",
        ],
        rows=[
            [
                f"layer {row['layer']}, head {row['head']}",
                row["kind"],
                *(text(at.get((row["layer"], row["head"])), ".2f") for at in entropy),
                text(row["spread"], ".1f"),
                half_length_text(row["half_length"]),
            ]
            for row in grown
        ],
    )


def _growth(entropies: list[float]) -> float:
    return entropies[-1] - entropies[0] if len(entropies) > 1 else entropies[0]


def _sentence(heads: Heads, case: str) -> str:
    lengths, counts = heads.lengths_of(case), heads.counts(case)
    number = counts.pop("disperses", 0)
    total = counts.total() + number
    verb = "disperses" if number == 1 else "disperse"
    of = f"{total:,} head{'s' if total > 1 else ''}"
    others = f", beside {_listed(counts)}" if counts else ""
    at = f"{case}: at" if len(heads.cases) > 1 else "At"
    return (
        f"{at} {lengths[-1]:,} tokens {number or 'none'} of {of} {verb}{others}; "
        f"{_entropy(heads, case)}."
    )


def _listed(counts: Counter[str]) -> str:
    """Return, say, "92 sinks, 80 local and 17 steady heads"."""
    sinks = counts.pop("sink", 0)
    parts = [f"{sinks:,} sink{'s' if sinks > 1 else ''}"] if sinks else []
    parts += [f"{count:,} {kind}" for kind, count in counts.most_common()]
    if counts:
        parts[-1] += " head" if counts.most_common()[-1][1] == 1 else " heads"
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _entropy(heads: Heads, case: str) -> str:
    lengths = heads.lengths_of(case)
    short, long = (
        mean(row["entropy"] for row in heads.at(case, length) if row["entropy"] is not None)
        for length in (lengths[0], lengths[-1])
    )
    if short is None or long is None or len(lengths) == 1:
        return f"their mean entropy is {text(long, '.2f')} nats"
    moved = "rises" if long > short else "falls"
    return f"their mean entropy {moved} from {short:.2f} nats at {lengths[0]:,} to {long:.2f}"
