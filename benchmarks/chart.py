"""Draw the results that are kept: what sharpening costs, and what calibrated models find.

    python benchmarks/chart.py            writes attention.svg and others beside the tables

It needs `pip install '.[transformers,report]'`.
"""

import csv
import json
from pathlib import Path

import altair as alt

from sharpmax.hf.calibrate import RIVALS
from sharpmax.report.calibration import Tables, figures
from sharpmax.report.chart import save
from sharpmax.report.rows import Row

RESULTS = Path(__file__).parent / "results"
CALIBRATE = RESULTS / "h200" / "calibrate"
RUN, RIVALS_RUN = CALIBRATE / "larger-steps", CALIBRATE / "sink-apart"
"""The calibration that is drawn, and the one whose run was asked of its rivals too."""
KEPT = "cost 0.6%"
"""The policy of the first that its own rule keeps."""


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


def table(path: Path) -> list[Row]:
    """Return the rows of a table, numbers as numbers."""
    with path.open(encoding="utf-8") as file:
        return [{key: number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def number(text: str) -> float | str:
    """Return the number that a cell holds, or else its text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def calibration() -> Tables:
    """Return a calibration, and the policy that it keeps beside plain attention and its rivals."""
    about = json.loads((RUN / "cost-0.6.json").read_text(encoding="utf-8"))["about"]
    rivals = [row for row in table(RIVALS_RUN / "scores.csv") if row["case"] in RIVALS]
    return Tables(
        plain=about["figures"]["plain"],
        points=table(RUN / "points.csv"),
        kept=KEPT,
        chosen=KEPT,
        heads=table(RUN / "heads.csv"),
        scores=[*table(RUN / "scores.csv"), *rivals],
    )


def main() -> None:
    drawn = figures(calibration())
    for name in ("comparison", "frontier", "fewer_heads"):
        png, svg = save(drawn[name], CALIBRATE, name)
        png.unlink()
        print(svg.relative_to(RESULTS))
    for path in sorted(RESULTS.glob("*/*.csv")):
        if path.stem in ("attention", "decode"):
            chart(path).save(path.with_suffix(".svg"))
            print(path.with_suffix(".svg").relative_to(RESULTS))


if __name__ == "__main__":
    main()
