"""A model's heads as a grid of cells: a column a layer, a row a head."""

import altair as alt

CELL, LOWEST, HIGHEST = 22, 44, 440  # a row of cells, and the grid, in pixels
GAP = 0.06  # between cells, of a cell


def layer_axis() -> alt.X:
    """Return the axis of layers."""
    axis = alt.Axis(labelAngle=0, ticks=False, domain=False, offset=2)
    return alt.X("layer:O", title="layer", axis=axis, scale=alt.Scale(paddingInner=GAP))


def head_axis() -> alt.Y:
    """Return the axis of heads."""
    axis = alt.Axis(ticks=False, domain=False, offset=2)
    return alt.Y("head:O", title="head", axis=axis, scale=alt.Scale(paddingInner=GAP))


def grid_height(heads: int) -> int:
    """Return how high a grid of so many rows is, in pixels."""
    return max(LOWEST, min(HIGHEST, CELL * heads))
