"""A calibration that takes moments: tiny settings, and what is fitted with them."""

from sharpmax.hf.calibrate import Settings
from sharpmax.hf.calibrate.fit import Fitting
from sharpmax.hf.calibrate.processes import Processes

SETTINGS = Settings(
    length=320,
    shortest=256,
    reference_length=32,
    costs=(4.0, 2.0),
    steps=2,
    heads=(3, 1),
    prompts=3,
    asked=2,
    texts=2,
    weighings=1,
    check_every=1,
    check_prompts=1,
    check_texts=2,
    max_text_loss=10.0,
    entropy=True,
)
TEXT = "The quick brown fox jumps over the lazy dog; nobody knows why it does so. " * 80


def fitting_of(model, examples, settings=SETTINGS, processes=None):
    return Fitting(model, examples, settings, processes or Processes())
