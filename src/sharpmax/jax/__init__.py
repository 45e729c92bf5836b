"""sharpmax for JAX: attention whose temperature a policy chooses row by row.

`sharpmax.softmax`, the statistics and the policies work on JAX arrays as they are, under `jit`,
`grad` and `vmap`.
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"sharpmax.jax needs {error.name}, which comes with: pip install 'sharpmax[jax]'",
        name=error.name,
    ) from None

from sharpmax.jax.attention import attention
from sharpmax.jax.row_statistics import row_statistics

__all__ = ["attention", "row_statistics"]
