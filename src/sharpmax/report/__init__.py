"""Charts, and one self-contained page that shows them.

`page` knows pages, `style` colours and `chart` files; none of them knows what is drawn.
`max_retrieval` draws the tables of `sharpmax reproduce`, `diagnosis` that of `sharpmax diagnose`.
"""

try:
    import altair as _altair  # noqa: F401
    import vl_convert as _vl_convert  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"sharpmax.report needs {error.name}, which comes with: pip install 'sharpmax[report]'",
        name=error.name,
    ) from None

from sharpmax.report.chart import save
from sharpmax.report.page import Page, Section, Slider, Table

__all__ = ["Page", "Section", "Slider", "Table", "save"]
