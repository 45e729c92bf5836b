"""`sharpmax bounds`: how sharp a head can be at which length, by the paper's theory."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sharpmax.theory import beta_to_keep_weight, dispersion_length, weight_bounds

GEMMA_2B_MEAN_SPREAD = 5.69
LENGTHS = [2**exponent for exponent in range(4, 18)]


def bounds(
    spread: Annotated[
        float, typer.Option(help="δ, a head's largest logit minus its smallest.")
    ] = GEMMA_2B_MEAN_SPREAD,
    beta: Annotated[float, typer.Option(help="β = 1/θ, the head's inverse temperature.")] = 1.0,
    weight: Annotated[
        float, typer.Option(help="The weight that one item ought to be able to have.")
    ] = 0.5,
    reference_length: Annotated[
        int, typer.Option(help="n₀, the length at which the head is sharp enough.")
    ] = 64,
    length: Annotated[
        list[int], typer.Option(help="A length n to show; may be given several times.")
    ] = LENGTHS,
) -> None:
    """Bounds on a head's weights by length, and the β that would undo the dispersion.

    The default spread is the mean over the heads of Gemma 2B.
    """
    blurred = dispersion_length(spread, weight, beta)
    limit = f"{blurred:,.0f}" if blurred < 1e15 else f"{blurred:.3g}"
    table = Table(title=f"Logit spread δ = {spread:g}, inverse temperature β = {beta:g}")
    table.add_column("items n", justify="right")
    table.add_column("least weight\nexp(−βδ)/n", justify="right")
    table.add_column("largest weight\nexp(βδ)/n", justify="right")
    table.add_column(f"β to keep the sharpness\nof {reference_length:,} items", justify="right")
    for n in length:
        least, largest = weight_bounds(spread, n, beta)
        needed = beta_to_keep_weight(n, reference_length, spread, beta)
        table.add_row(
            f"{n:,}",
            f"{least:.2e}",
            "no bound" if largest >= 1 else f"{largest:.4f}",
            f"{needed:.3f}",
            style="red" if n > blurred else None,
        )
    console = Console()
    console.print(table)
    console.print(
        f"No weight can pass {weight:g} beyond about [bold]{limit}[/bold] items (Theorem 2.2); "
        "lengths beyond are in red."
    )
