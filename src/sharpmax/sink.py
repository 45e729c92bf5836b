"""The first key of a row, on which heads rest that have nothing to say: their sink.

Sharpening moves weight to or from the sink as a side effect. A policy may therefore also choose
what is added to the sink's logit after β: the row is softmax(β·s + γ·[first key]). γ above 0
lets the head rest, γ below 0 lets it speak.
"""

from __future__ import annotations

from sharpmax.arrays import Array, computing_dtype, move_axis, namespace


def shift_sink(weights: Array, shift: Array | float, axis: int = -1) -> Array:
    """Return weights along `axis` with γ added to the logit of the first.

    Where the first is hidden, its weight is 0, and nothing changes.

    Args:
        weights: Of softmax.
        shift: γ, a number or one for every row.
        axis: The axis that the weights sum to 1 along.
    """
    xp = namespace(weights)
    rows = xp.astype(move_axis(weights, axis, -1), computing_dtype(weights), copy=False)
    shift = xp.broadcast_to(xp.asarray(shift, dtype=rows.dtype), rows.shape[:-1])[..., None]
    first = rows[..., :1]
    shifted = xp.concat((first * xp.exp(shift), rows[..., 1:]), axis=-1)
    shifted = shifted / (1 + first * xp.expm1(shift))
    return move_axis(xp.astype(shifted, weights.dtype, copy=False), -1, axis)
