"""sharpmax for Hugging Face transformers: sharpen a model, look at its attention, load one.

Nothing is registered or patched until a model is sharpened or diagnosed.
"""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"sharpmax.hf needs {error.name}, which comes with: pip install 'sharpmax[transformers]'",
        name=error.name,
    ) from None

from sharpmax.hf.calibrate import Calibration, calibrate
from sharpmax.hf.diagnose import Diagnosis, Head, diagnose
from sharpmax.hf.evaluate import Plan, Score, evaluate
from sharpmax.hf.load import Loaded, load
from sharpmax.hf.sharpen import Sharpened, sharpen

__all__ = [
    "Calibration",
    "Diagnosis",
    "Head",
    "Loaded",
    "Plan",
    "Score",
    "Sharpened",
    "calibrate",
    "diagnose",
    "evaluate",
    "load",
    "sharpen",
]
