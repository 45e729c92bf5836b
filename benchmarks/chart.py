"""Draw the results that are kept: what sharpened attention and decoding cost beside plain ones.

    python benchmarks/chart.py            writes attention.svg and decode.svg beside the tables

It needs `pip install '.[report]'`.
"""

import csv
from pathlib import Path

import altair as alt

RESULTS = Path(__file__).parent / "results"


def rows_of(path: Path) -> list[dict[str, object]]:
    """Return what is drawn of a table: candidates that have a yardstick other than themselves."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if path.stem == "decode":
        shown = [row for row in rows if row["candidate"].startswith("sharpmax")]
        return [
            {
                "panel": f"{int(row['keys']):,} keys, {row['rows']} rows",
                "candidate": row["candidate"],
                "times plain": float(row["ratio"]),
            }
            for row in shown
        ]
    shown = [row for row in rows if row["candidate"].startswith(("sharpmax", "row"))]
    return [
        {
            "panel": f"{row['heads']} heads × {int(row['length']):,} × {row['width']}",
            "candidate": row["candidate"],
            "times plain": float(row["ratio"]),
        }
        for row in shown
    ]


def chart(path: Path) -> alt.Chart:
    """Return bars of time as a multiple of plain attention, a panel for each shape."""
    data = alt.Data(values=rows_of(path))
    order = list(dict.fromkeys(row["candidate"] for row in data.values))
    bars = alt.Chart(data).encode(
        y=alt.Y("candidate:N", sort=order, title=None, axis=alt.Axis(labelLimit=260)),
        x=alt.X("times plain:Q", title="time as a multiple of the fastest plain attention"),
    )
    marks = bars.mark_bar(color="#3b6fb6")
    numbers = bars.mark_text(align="left", dx=4).encode(
        text=alt.Text("times plain:Q", format=".2f")
    )
    plain = alt.Chart(data).mark_rule(color="#444", strokeDash=[4, 3]).encode(x=alt.datum(1.0))
    device = path.parent.name.upper()
    return (
        alt.layer(marks, numbers, plain)
        .properties(width=360, height=22 * len(order))
        .facet(facet=alt.Facet("panel:N", title=None, sort=None), columns=2)
        .properties(title=f"sharpmax {path.stem} on {device}, dashed: plain attention")
    )


def main() -> None:
    for path in sorted(RESULTS.glob("*/*.csv")):
        if path.stem in ("attention", "decode"):
            chart(path).save(path.with_suffix(".svg"))
            print(path.with_suffix(".svg").relative_to(RESULTS))


if __name__ == "__main__":
    main()
