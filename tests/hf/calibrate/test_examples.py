"""What is fitted to, and what is looked at."""

import dataclasses
import json
from pathlib import Path

import pytest
from tiny_fit import SETTINGS, TEXT
from tiny_models import letters

from sharpmax.hf.branches import FILLED_TO, alike
from sharpmax.hf.calibrate import Examples, Question, Settings
from sharpmax.hf.calibrate.examples import ENDS, QUESTION
from sharpmax.hf.calibrate.settings import CHECKED
from sharpmax.tasks.key_value import HELD_OUT, TEMPLATES

QUESTIONS = [Question(f"Who is number {i}?", "nobody") for i in range(8)]


def is_own(prompts) -> bool:
    return "Who" in letters().decode(prompts[0].tokens).replace(" ", "")


@pytest.mark.parametrize(("share", "prompts"), [(0.5, 3), (0.5, 1), (0.1, 2), (1.0, 2)])
def test_questions_of_the_users_own_are_their_share_of_the_prompts(share, prompts):
    settings = dataclasses.replace(SETTINGS, own=share, prompts=prompts)
    examples = Examples(letters(), settings, TEXT, QUESTIONS)
    found = [is_own(some) for step in range(60) for some in examples.batch(step).prompts]
    assert len(found) == 60 * prompts
    assert sum(found) / len(found) == pytest.approx(share, abs=0.1)
    assert any(found)


def test_one_question_in_four_is_looked_at_after_the_lines():
    examples = Examples(letters(), SETTINGS, TEXT, QUESTIONS)
    *lines, third, seventh = examples.checked_prompts()
    read = [letters().decode(p.tokens).replace(" ", "")[-2] for [p] in (third, seventh)]
    assert read == ["3", "7"]
    assert examples.own_checked == 2
    assert lines
    assert not any(map(is_own, lines))
    alone = Examples(letters(), dataclasses.replace(SETTINGS, own=1.0), TEXT, QUESTIONS)
    assert len(alone.checked_prompts()) == 2


@pytest.mark.parametrize(
    ("own", "questions", "message"),
    [
        (0.5, QUESTIONS[:1], "questions must be at least 4, got 1"),
        (0.5, [Question("a" * 400, "b")] * 4, "more than the length of 320"),
        (0.5, [Question("Who?", " ")] * 4, "a question must have a prompt and an answer"),
        (0.0, QUESTIONS, "own must be above 0 where there are questions, got 0"),
    ],
)
def test_questions_that_cannot_be(own, questions, message):
    with pytest.raises(ValueError, match=message):
        Examples(letters(), dataclasses.replace(SETTINGS, own=own), TEXT, questions)


@pytest.mark.parametrize("text", [[b"bytes"], Path("text.txt")])
def test_texts_of_another_kind(text):
    with pytest.raises(TypeError, match="text must be a text or several, each a str"):
        Examples(letters(), SETTINGS, text)


def test_questions_of_another_kind():
    with pytest.raises(TypeError, match="questions must be of type Question"):
        Examples(letters(), SETTINGS, TEXT, [{"prompt": "Who?", "answer": "I"}] * 4)


def test_questions_are_read_a_line_each_whatever_lies_in_them():
    lines = [{"prompt": "Who\u2028is it?", "answer": "nobody"}, {"prompt": "Who?", "answer": "I"}]
    text = "\ufeff" + "\r\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert [question._asdict() for question in Question.read(text)] == lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no questions in it"),
        ("\n{", "line 2 is not JSON: Expecting property name"),
        ("[1]", "line 1 is not an object with a prompt and an answer"),
        ('{"prompt": "Who?"}', "line 1 must have 'answer' as text, got None"),
        ('{"prompt": " ", "answer": "I"}', "line 1 must have 'prompt' as text, got ' '"),
    ],
)
def test_files_that_hold_no_questions(text, message):
    with pytest.raises(ValueError, match=message):
        Question.read(text)


def test_some_prompts_ask_for_the_first_line_or_the_last(examples):
    groups = [prompts for step in range(30) for prompts in examples.batch(step).prompts]
    depths = [prompt.depth for prompts in groups for prompt in prompts]
    ends = sum(depth in (0, 1) for depth in depths) / len(depths)
    assert ENDS < ends < 1


def test_prompts_of_a_group_share_a_text_and_ask_for_different_lines(examples):
    for prompts in (prompts for step in range(10) for prompts in examples.batch(step).prompts):
        assert 1 <= len(prompts) <= SETTINGS.asked
        assert len({prompt.depth for prompt in prompts}) == len(prompts)
        assert alike([prompt.tokens for prompt in prompts]) > SETTINGS.shortest // 2


def test_templates_are_for_one_thing_each():
    settings = Settings()
    assert not {*settings.templates} & {*CHECKED, *HELD_OUT}
    assert {*settings.templates, *CHECKED, *HELD_OUT} == {*TEMPLATES}


def test_several_texts_each_keep_an_eighth_to_look_at():
    examples = Examples(letters(), SETTINGS, [TEXT, TEXT.upper()])
    assert examples.checked_text().count("F") == examples.checked_text().count("f") > 0
    assert len(examples.fitted_texts()) == SETTINGS.check_texts


def test_steps_have_half_the_length_the_whole_and_any_in_turn():
    examples = Examples(letters(), dataclasses.replace(SETTINGS, length=640), TEXT)
    steps = [examples.batch(step) for step in range(30)]
    lengths = [[len(text) for text in batch.texts] for batch in steps]
    first = [of_step[0] for of_step in lengths]
    assert all({*of_step} == {of_step[0]} for of_step in lengths)
    assert {*first[::3]} == {320}
    assert {*first[1::3]} == {640}
    assert len({*first[2::3]}) > 3
    assert all(length % FILLED_TO == 0 for length in first[2::3])
    assert all(SETTINGS.shortest <= length <= 640 for length in first[2::3])
    for batch, length in zip(steps, first, strict=True):
        longest = [max(len(p.tokens) + len(p.answer) for p in prompts) for prompts in batch.prompts]
        assert all(length - 100 < found <= length for found in longest)


def test_steps_read_more_of_shorter_texts():
    settings = dataclasses.replace(SETTINGS, length=640)
    examples = Examples(letters(), settings, TEXT)
    room = QUESTION * settings.asked  # of the questions, which are read as well
    for batch in map(examples.batch, range(30)):
        times = len(batch.texts) / settings.texts
        assert len(batch.prompts) == times * settings.prompts
        read = times * (len(batch.texts[0]) + room)
        assert 0.7 < read / (settings.length + room) < 1.4
    assert len(examples.batch(0).prompts) == 2 * settings.prompts


def test_steps_with_own_questions_read_as_many_at_every_length():
    settings = dataclasses.replace(SETTINGS, length=640)
    examples = Examples(letters(), settings, TEXT, [Question("Who?", "nobody")] * 4)
    for batch in map(examples.batch, range(6)):
        assert len(batch.texts) == settings.texts
        assert len(batch.prompts) == settings.prompts
