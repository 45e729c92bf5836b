"""Whole numbers rounded up, for launching kernels.

Triton has the same for host and kernel alike, but a call of them takes as long as a small kernel.
"""


def ceil_div(number: int, by: int) -> int:
    """Return how many parts of a size a number makes, the last perhaps not full."""
    return -(-number // by)


def power_of_2(number: int) -> int:
    """Return the least power of 2 that is not below a number."""
    return 1 << (number - 1).bit_length() if number > 1 else 1
