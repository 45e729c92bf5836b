"""Templates that are made up at random, so that no two prompts need to look alike.

What is fitted to a few templates learns their words. A frame, a noun, a question, an opening and
the kinds of keys and values, each drawn by itself, make millions of templates. None
of their frames is one of the templates in `TEMPLATES` that are kept for tests.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from sharpmax.tasks.key_value.templates import (
    BEAST,
    PERSON,
    THING,
    Kind,
    Template,
    date,
    number,
    pair,
    plate,
    word,
)
from sharpmax.tasks.key_value.words import ANIMALS, CITIES, COLOURS, FAMILIES, NAMES, NOUNS, THINGS


class Frame(NamedTuple):
    """How a line goes, and how the answer begins."""

    line: str
    answer: str


# Few put the value before its key: there is hardly a temperature at which a model finds it.
FRAMES = (
    Frame("The {noun} of {key} is {value}.", "The {noun} of {key} is"),
    Frame("{key}'s {noun} is {value}.", "{key}'s {noun} is"),
    Frame("{key} has the {noun} {value}.", "{key} has the {noun}"),
    Frame("For {key}, the {noun} is {value}.", "For {key}, the {noun} is"),
    Frame("{key} was given {value} as {noun}.", "As {noun}, {key} was given"),
    Frame("{value} is the {noun} of {key}.", "The {noun} of {key} is"),
    Frame("Somebody told me that {key} got {value}.", "Somebody told me that {key} got"),
    Frame("{key} and {value} belong together.", "Together belong {key} and"),
    Frame("If you look for {key}, take {value}.", "If you look for {key}, take"),
    Frame("{key}, whose {noun} is {value}, was there.", "{key}, whose {noun} is"),
    Frame("Everybody knows {key} by the {noun} {value}.", "Everybody knows {key} by the {noun}"),
    Frame("{key}: {value}", "{key}:"),
    Frame("{key} - {value}", "{key} -"),
    Frame("{key} ({noun} {value})", "{key} ({noun}"),
    Frame("{noun} of {key}: {value}", "{noun} of {key}:"),
    Frame("- {key}, {noun} {value}", "- {key}, {noun}"),
    Frame("* {value} for {key}", "* for {key}:"),
    Frame("[{key}] {noun}: {value};", "[{key}] {noun}:"),
    Frame('{{"name": "{key}", "{noun}": "{value}"}}', '{{"name": "{key}", "{noun}": "'),
    Frame('<{noun} name="{key}">{value}</{noun}>', 'The {noun} named "{key}" has "'),
    Frame("set {key} {value}", "set {key}"),
    Frame("{key} | {noun} | {value}", "{key} | {noun} |"),
    Frame("{key} ~ {value}", "{key} ~"),
    Frame("{key} / {value}", "{key} /"),
    Frame("({key}, {value})", "({key},"),
    Frame("{key} means {value}.", "{key} means"),
    Frame("{key}, also known as {value}", "{key}, also known as"),
)

QUESTIONS = (
    "What is the {noun} of {key}?",
    "Which {noun} does {key} have?",
    "Tell me about {key}.",
    "Question: what belongs to {key}?\nAnswer:",
    "Q: the {noun} for {key}?\nA:",
    "Please look up {key}.",
    "Now, once more:",
    "Do you remember {key}?",
    "I need to know what was said about {key}.",
    "According to the text above:",
    "What is {key} here?",
    "What stands beside {key}?",
    "",
)

OPENINGS = (
    "Here is a list.",
    "Read this carefully.",
    "The following {noun}s were noted down.",
    "Everything about every {noun}:",
    "This is what we know.",
    "NOTES",
    "A long list follows, of which you will be asked one thing.",
    "Data:",
    "Yesterday's protocol says the following.",
    "#",
)

KEYS: tuple[Kind, ...] = (
    PERSON,
    THING,
    BEAST,
    number(5),
    plate,
    pair(CITIES, ANIMALS, "-"),
    pair(COLOURS, CITIES),
    pair(NAMES, CITIES, " of "),
    pair(THINGS, ANIMALS, "_"),
    pair(FAMILIES, FAMILIES, " and "),
)

VALUES: tuple[Kind, ...] = (
    number(2),
    number(3),
    number(4),
    number(5),
    number(6),
    number(7),
    plate,
    date,
    PERSON,
    THING,
    BEAST,
    word(CITIES),
    word(ANIMALS),
    pair(COLOURS, THINGS, "."),
    pair(CITIES, NAMES, ""),
    pair(ANIMALS, THINGS, "_"),
    pair(NAMES, THINGS, ""),
    pair(FAMILIES, ANIMALS, ""),
    pair(THINGS, FAMILIES, ""),
)


def drawn_template(random: Random) -> Template:
    """Return a template that is made up at random."""
    frame, noun = random.choice(FRAMES), random.choice(NOUNS)
    question = f"{random.choice(QUESTIONS)} {frame.answer}".strip()
    return Template(
        random.choice(OPENINGS).replace("{noun}", noun),
        frame.line.replace("{noun}", noun),
        question.replace("{noun}", noun),
        random.choice(KEYS),
        random.choice(VALUES),
    )
