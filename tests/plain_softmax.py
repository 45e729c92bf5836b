"""Softmax as one writes it in NumPy, to compare with."""

import numpy as np


def numpy_softmax(logits: np.ndarray) -> np.ndarray:
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)
