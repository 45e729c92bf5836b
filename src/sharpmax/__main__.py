"""`python -m sharpmax`."""

from sharpmax.cli import main

main()
