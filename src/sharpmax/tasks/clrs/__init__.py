"""CLRS-Text: thirty algorithms as text, and models that must run them on sizes they never saw.

The samples come from the benchmark's own generator, dm-clrs.
"""

from sharpmax.tasks.clrs.data import Recipe, generate, load
from sharpmax.tasks.clrs.generator import Sample, published, samples

__all__ = ["Recipe", "Sample", "generate", "load", "published", "samples"]
