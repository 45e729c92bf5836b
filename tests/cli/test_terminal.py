"""What commands tell on a terminal, and in a log."""

import io

import pytest
from rich.console import Console

from sharpmax.cli import terminal


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_log_gets_a_line_of_progress_now_and_then(monkeypatch, seconds):
    monkeypatch.setattr(terminal, "WRITTEN_EVERY", seconds)
    log = io.StringIO()
    with terminal.progress_bars(Console(file=log)) as bars:
        bar = bars.add_task("fitting", total=9)
        for _ in range(3):
            bars.advance(bar)
        bars.update(bar, description="resting", advance=1)
        lines = log.getvalue().splitlines()
    assert len(lines) == (1 if seconds else 5)
    assert lines[0].split()[:2] == ["fitting", "0/9"]
    assert ("resting" in lines[-1]) == (not seconds)


def test_a_terminal_gets_bars_and_no_lines():
    shown = io.StringIO()
    bars = terminal.progress_bars(Console(file=shown, force_terminal=True))
    bars.advance(bars.add_task("fitting", total=9))
    assert shown.getvalue() == ""
    assert len(bars.columns) == 6
