"""A run's tables, the report written from them once, and a browser to read it with."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tables_of_a_run import tables_of_a_run

from sharpmax.report.max_retrieval import Tables, write_report

SETTINGS = {"steps": 100_000, "device": "cpu", "note": "</script><script>alert(1)</script>"}
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


@pytest.fixture(scope="session")
def tables() -> Tables:
    """Four sizes and three seeds, with a policy of the user's own."""
    policies = ("softmax", "paper", "entropy cap", "my 'own' </script>", "argmax")
    return tables_of_a_run(sizes=(16, 32, 64, 1024), seeds=3, policies=policies, sets=8)


@pytest.fixture(scope="session")
def report(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the report; its figures lie beside it."""
    return write_report(tmp_path_factory.mktemp("run"), tables, SETTINGS)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, which logs its console and its requests."""
    from selenium import webdriver

    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs Chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    with webdriver.Chrome(options=options, service=service) as chromium:
        yield chromium
