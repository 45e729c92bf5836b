"""Everything works where Triton is not installed."""

import subprocess
import sys

CODE = """
import sys
sys.modules["triton"] = None
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "triton" else real(name, *a)
import torch
from sharpmax.torch import attention, row_statistics
q = torch.randn(1, 2, 9, 8)
print(attention(q, q, q, is_causal=True).shape, row_statistics(q, q).entropy.shape)
try:
    row_statistics(q, q, implementation="triton")
except NotImplementedError as refusal:
    print(refusal)
"""


def test_attention_without_triton():
    command = [sys.executable, "-c", CODE]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "the triton row statistics need Triton, which is not installed" in run.stdout
