"""Sharpened attention for PyTorch, and its row statistics, in linear memory."""

from sharpmax.torch.attention import attention
from sharpmax.torch.row_statistics import row_statistics

__all__ = ["attention", "row_statistics"]
