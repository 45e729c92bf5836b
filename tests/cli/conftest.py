"""A command as a user runs it, within the test's own process."""

import sys

import pytest

from sharpmax.cli import main

WRONG = 2
"""The exit code of a command that was given wrong values, and says so on the side."""


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command; return its exit code, and what it said."""

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sharpmax", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "140")
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        return exit_.value.code or 0, said.err if exit_.value.code == WRONG else said.out

    return call
