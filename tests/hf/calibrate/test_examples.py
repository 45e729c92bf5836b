"""What is fitted to, and what is looked at."""

import dataclasses

import pytest
from tiny_fit import SETTINGS, TEXT
from tiny_models import letters

from sharpmax.hf.branches import FILLED_TO, alike
from sharpmax.hf.calibrate import Examples, Question, Settings
from sharpmax.hf.calibrate.examples import ENDS, QUESTION
from sharpmax.hf.calibrate.settings import CHECKED
from sharpmax.tasks.key_value import HELD_OUT, TEMPLATES


def test_questions_of_the_users_own_are_every_other_prompt():
    questions = [Question(f"Who is number {i}?", "nobody") for i in range(8)]
    examples = Examples(letters(), SETTINGS, TEXT, questions)
    read = letters().decode
    first = [prompts[0] for prompts in examples.batch(0).prompts]
    own = [p for p in first if "Who" in read(p.tokens).replace(" ", "")]
    assert len(own) == 2
    checked = examples.checked_prompts()[-2:]
    assert [read(p.tokens).replace(" ", "")[-2] for [p] in checked] == ["3", "7"]
    alone = Examples(letters(), dataclasses.replace(SETTINGS, own=1), TEXT, questions)
    every = [*alone.batch(0).prompts, *alone.checked_prompts()]
    assert len(every) == SETTINGS.prompts + 2
    assert all("Who" in read(p.tokens).replace(" ", "") for [p] in every)
    with pytest.raises(ValueError, match="own must be a share from 0 to 1, got 2"):
        dataclasses.replace(SETTINGS, own=2)
    with pytest.raises(ValueError, match="questions must be at least 4, got 1"):
        Examples(letters(), SETTINGS, TEXT, questions[:1])
    with pytest.raises(ValueError, match="more than the length of 320"):
        Examples(letters(), SETTINGS, TEXT, [Question("a" * 400, "b")] * 4)


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
