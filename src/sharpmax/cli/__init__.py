"""The command line: `sharpmax COMMAND`. One file a command; this one only gathers them."""

import sys

import typer

from sharpmax.cli.bounds import bounds

app = typer.Typer(
    help="Sharp attention at any length: measure, bound and undo the dispersion of softmax.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(bounds)


@app.callback()
def _commands() -> None:
    """Keep a command's name necessary, even while there is only one command."""


def main() -> None:
    """Run a command; what the library finds wrong with a value is one line and exit code 2."""
    try:
        app()
    except ValueError as error:
        print(f"sharpmax: {error}", file=sys.stderr)
        raise SystemExit(2) from None
