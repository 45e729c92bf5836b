"""Key-value retrieval: many lines that pair a key with a value, and a question for one of them.

A model that blurs at long contexts finds the line among few and loses it among many.
"""

from sharpmax.tasks.key_value.drawn import drawn_template
from sharpmax.tasks.key_value.evaluate import Cell, prompts_by_place, retrieval
from sharpmax.tasks.key_value.prompts import Prompt, is_for_tests, make_prompt, make_prompts
from sharpmax.tasks.key_value.templates import HELD_OUT, TEMPLATES, Template

__all__ = [
    "HELD_OUT",
    "TEMPLATES",
    "Cell",
    "Prompt",
    "Template",
    "drawn_template",
    "is_for_tests",
    "make_prompt",
    "make_prompts",
    "prompts_by_place",
    "retrieval",
]
