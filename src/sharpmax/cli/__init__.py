"""The command line: `sharpmax COMMAND`. One file a command; this one only gathers them."""

import sys
from typing import Annotated

import typer

from sharpmax import __version__
from sharpmax.cli.bounds import bounds
from sharpmax.cli.calibrate import calibrate
from sharpmax.cli.clrs import clrs
from sharpmax.cli.diagnose import diagnose
from sharpmax.cli.evaluate import evaluate
from sharpmax.cli.reproduce import reproduce

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(bounds)
app.command()(calibrate)
app.add_typer(clrs, name="clrs")
app.command()(diagnose)
app.command()(evaluate)
app.command()(reproduce)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sharpmax {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Sharp attention at any length: measure, bound and undo the dispersion of softmax."""


def main() -> None:
    """Run a command; what the library finds wrong with a value is one line and exit code 2."""
    try:
        app()
    except UnicodeError:
        raise
    except (ValueError, OverflowError, NotImplementedError) as error:
        print(f"sharpmax: {error}", file=sys.stderr)
        raise SystemExit(2) from None
