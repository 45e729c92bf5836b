"""How a line pairs its key with its value, and what both are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from sharpmax.tasks.key_value.words import ANIMALS, CITIES, COLOURS, FAMILIES, NAMES, THINGS

Kind = Callable[[Random], str]


def number(digits: int) -> Kind:
    """Return a kind of numbers of so many digits."""
    return lambda random: str(random.randrange(10 ** (digits - 1), 10**digits))


def pair(first: list[str], second: list[str], between: str = " ") -> Kind:
    """Return a kind of two words, one from each list."""
    return lambda random: random.choice(first) + between + random.choice(second)


def word(words: list[str]) -> Kind:
    """Return a kind of one word from a list."""
    return lambda random: random.choice(words)


def plate(random: Random) -> str:
    """Return letters and digits, as on a number plate."""
    letters = "".join(random.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(3))
    return f"{letters}-{random.randrange(100, 1000)}"


def date(random: Random) -> str:
    """Return a day of a month of a year."""
    months = ["January", "March", "April", "June", "July", "August", "October", "December"]
    return f"{random.randrange(1, 31)} {random.choice(months)} {random.randrange(1930, 2010)}"


PERSON = pair(NAMES, FAMILIES)
THING = pair(COLOURS, THINGS)
BEAST = pair(COLOURS, ANIMALS, "-")


@dataclass(frozen=True)
class Template:
    """The words around keys and values; {key} and {value} stand for them.

    Attributes:
        opening: What comes before all lines.
        line: One pair.
        question: What comes after all lines; the value comes next, after a space.
        key: What keys are.
        value: What values are.
    """

    opening: str
    line: str
    question: str
    key: Kind
    value: Kind


TEMPLATES: dict[str, Template] = {
    "code": Template(
        "Here is a list of codes.",
        "The code for {key} is {value}.",
        "Question: What is the code for {key}? Answer: The code for {key} is",
        THING,
        number(4),
    ),
    "magic number": Template(
        "Some magic numbers are hidden in the following text. Remember them.",
        "One of the magic numbers for {key} is: {value}.",
        "What is the magic number for {key} in the text above? The magic number for {key} is:",
        BEAST,
        number(7),
    ),
    "room": Template(
        "These guests stay at the hotel.",
        "{key} is staying in room {value}.",
        "In which room is {key} staying? {key} is staying in room",
        PERSON,
        number(3),
    ),
    "phone": Template(
        "The office's telephone list:",
        "To reach {key}, dial {value}.",
        "Which number reaches {key}? To reach {key}, dial",
        PERSON,
        number(5),
    ),
    "city": Template(
        "Where everybody lives:",
        "{key} lives in {value}.",
        "Where does {key} live? {key} lives in",
        PERSON,
        word(CITIES),
    ),
    "price": Template(
        "The market's prices of today:",
        "A {key} costs {value} coins.",
        "How many coins does a {key} cost? A {key} costs",
        THING,
        number(3),
    ),
    "plate": Template(
        "Cars in the garage and their plates.",
        "The plate of {key}'s car is {value}.",
        "What is the plate of {key}'s car? The plate of {key}'s car is",
        PERSON,
        plate,
    ),
    "pet": Template(
        "The pets of our neighbours.",
        "{key} has a pet {value}.",
        "Which pet does {key} have? {key} has a pet",
        PERSON,
        word(ANIMALS),
    ),
    "record": Template(
        "BEGIN RECORDS",
        'id: {key}; item: "{value}"',
        'What is the item of id {key}? id: {key}; item: "',
        number(5),
        THING,
    ),
    "shelf": Template(
        "An inventory of the store room.",
        "The {key} is on shelf {value}.",
        "On which shelf is the {key}? The {key} is on shelf",
        THING,
        number(2),
    ),
    "train": Template(
        "Departures from the main station:",
        "The train to {key} leaves from platform {value}.",
        "From which platform leaves the train to {key}? The train to {key} leaves from platform",
        pair(CITIES, CITIES, " via "),
        number(2),
    ),
    "json": Template(
        "The settings of the machine, as JSON:",
        '"{key}": "{value}",',
        'What is the setting "{key}"? "{key}": "',
        pair(COLOURS, THINGS, "_"),
        number(5),
    ),
    "arrow": Template(
        "Look-up table",
        "{key} -> {value}",
        "Look up {key}. {key} ->",
        number(6),
        pair(COLOURS, ANIMALS),
    ),
    "table": Template(
        "| name | balance |",
        "| {key} | {value} |",
        "The row of {key}, once more: | {key} |",
        PERSON,
        number(4),
    ),
    "birthday": Template(
        "Dates of birth in our class.",
        "{key} was born on the {value}.",
        "When was {key} born? {key} was born on the",
        PERSON,
        date,
    ),
    "owner": Template(
        "Lost and found: to whom everything belongs.",
        "The {key} belongs to {value}.",
        "Whose is the {key}? The {key} belongs to",
        THING,
        PERSON,
    ),
    "password": Template(
        "Keep these secrets to yourself!",
        "My secret word for {key} is {value}, by the way.",
        "I have forgotten my secret word for {key}. My secret word for {key} is",
        pair(CITIES, ANIMALS, "-"),
        pair(COLOURS, THINGS, "."),
    ),
    "score": Template(
        "The results of the tournament were as follows.",
        "With {value} points, {key} went home.",
        "With how many points did {key} go home? The points of {key}:",
        PERSON,
        number(3),
    ),
    "define": Template(
        "Definitions for what follows.",
        "Let {key} be {value};",
        "What was {key} defined to be? Let {key} be",
        pair(THINGS, ANIMALS, "_"),
        number(5),
    ),
    "capital": Template(
        "An atlas of a planet that nobody has seen:",
        "The capital of {key} is {value}.",
        "What is the capital of {key}? The capital of {key} is",
        pair(NAMES, CITIES, ""),
        pair(CITIES, NAMES, ""),
    ),
    "letter": Template(
        "Dear friend, you asked what I gave to whom. Here is all of it.",
        "To {key} I gave {value}.",
        "And what did I give to {key}? To {key} I gave",
        PERSON,
        pair(["a", "the"], THINGS),
    ),
    "flight": Template(
        "Arrivals today",
        "Flight {key}: gate {value}",
        "At which gate does flight {key} arrive? Flight {key}: gate",
        plate,
        number(3),
    ),
    "colour": Template(
        "The painter wrote down the colour of each object.",
        "{key}: painted {value}.",
        "How did the painter paint the {key}? {key}: painted",
        pair(ANIMALS, THINGS),
        word(COLOURS),
    ),
    "dictionary": Template(
        "A small dictionary of an invented language:",
        "{key} = {value}",
        "What is {key} in that language? {key} =",
        BEAST,
        pair(NAMES, COLOURS, ""),
    ),
}

HELD_OUT = ("magic number", "room", "train", "dictionary")
"""Templates that are for tests alone: nothing is fitted to them."""
