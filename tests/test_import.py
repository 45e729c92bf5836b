"""`import sharpmax` is instant and brings in no framework."""

import subprocess
import sys

PROBE = """
import sys
import sharpmax
print(sorted({"torch", "jax", "numpy", "scipy", "typer", "rich"} & set(sys.modules)))
"""

WITHOUT_FRAMEWORKS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "jax"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import numpy as np, sharpmax
print(sharpmax.softmax(np.zeros((2, 4))).sum())
"""


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_imports_no_framework():
    assert run(PROBE) == "[]"


def test_numpy_works_where_torch_and_jax_are_absent():
    assert run(WITHOUT_FRAMEWORKS) == "2.0"
