"""The Triton kernels of the row statistics; importing them needs Triton."""

from sharpmax.torch.row_statistics.kernel.backward import backward
from sharpmax.torch.row_statistics.kernel.forward import forward

__all__ = ["backward", "forward"]
