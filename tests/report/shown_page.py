"""A page in a browser: opening it, waiting for it, and reading off what it drew."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

CELLS = """
return [...document.querySelectorAll(`[data-chart="${arguments[0]}"] .role-mark.mark-rect path`)]
  .map((cell) => cell.getAttribute("fill"))
"""
LINES = """
return [...document.querySelectorAll(`[data-chart="${arguments[0]}"] .mark-line path`)]
  .map((line) => [line.getAttribute("stroke"), line.getAttribute("opacity")])
"""


def until(browser: Any, condition: Callable[[], Any]) -> Any:
    return WebDriverWait(browser, 20, poll_frequency=0.05).until(lambda _: condition())


def idle(browser: Any) -> bool:
    return browser.find_element(By.TAG_NAME, "main").get_attribute("aria-busy") == "false"


def cells(browser: Any, chart: int) -> list[str]:
    return browser.execute_script(CELLS, chart)


def lines(browser: Any, chart: int) -> list[list[str]]:
    return browser.execute_script(LINES, chart)


def set_theme(browser: Any, theme: str) -> None:
    media = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})


def set_width(browser: Any, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def ground(browser: Any) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def shown(browser: Any, page: Path) -> Iterator[Any]:
    """Yield the page, drawn, on a wide and light screen; what it remembers is forgotten after."""
    set_theme(browser, "light")
    set_width(browser, 1280)
    browser.get_log("performance")
    browser.get(page.as_uri())
    until(browser, lambda: idle(browser))
    yield browser
    browser.execute_script("localStorage.clear()")
    assert browser.get_log("browser") == []
