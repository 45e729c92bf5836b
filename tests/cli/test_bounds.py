"""`sharpmax bounds` prints the theory's table, or one line on what was wrong."""

import sys

import pytest

from sharpmax.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sharpmax", *arguments])
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code or 0


def test_prints_the_bound_for_gemma(monkeypatch, capsys):
    assert run(monkeypatch, "bounds") == 0
    output = capsys.readouterr().out
    assert "No weight can pass 0.5 beyond about 592 items" in output
    assert "131,072" in output


def test_prints_the_lengths_asked_for(monkeypatch, capsys):
    assert run(monkeypatch, "bounds", "--spread", "3", "--length", "1000", "--beta", "2") == 0
    output = capsys.readouterr().out
    assert "1,000" in output
    assert "0.4034" in output
    assert "131,072" not in output


def test_a_bad_value_is_one_line(monkeypatch, capsys):
    assert run(monkeypatch, "bounds", "--spread", "-1") == 2
    captured = capsys.readouterr()
    assert captured.err == "sharpmax: spread must be at least 0, got -1.0\n"
    assert captured.out == ""
