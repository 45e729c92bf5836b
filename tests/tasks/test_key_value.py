"""Prompts of pairs: they fit, hold the answer once, and are the same for the same seed."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax.tasks.key_value import (
    HELD_OUT,
    TEMPLATES,
    drawn_template,
    is_for_tests,
    make_prompt,
    make_prompts,
    prompts_by_place,
)


class Letters:
    """A tokenizer of one letter a token, with a token before every text."""

    def __call__(self, text: str | list[str], add_special_tokens: bool = True) -> dict[str, list]:
        if isinstance(text, list):
            return {"input_ids": [self(part, add_special_tokens)["input_ids"] for part in text]}
        return {"input_ids": [1] * add_special_tokens + [ord(letter) for letter in text]}


def text(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.integers(400, 4000),
    st.integers(0, 99),
    st.sampled_from([None, 0.0, 0.3, 1.0]),
)
def test_a_prompt_holds_the_line_that_it_asks_for(name, length, seed, depth):
    template = TEMPLATES[name]
    prompt = make_prompt(Letters(), template, length, Random(seed), depth)
    assert prompt.tokens[0] == 1
    assert 0.7 * length < len(prompt.tokens) + len(prompt.answer) <= length
    opening, *lines, question = text(prompt.tokens[1:]).split("\n")
    assert opening == template.opening
    assert prompt.pairs == len(lines)
    answer = text(prompt.answer).strip()
    asked = lines[round(prompt.depth * (len(lines) - 1))]
    assert answer in asked
    start = template.question.partition("{key}")[0]
    key = next(
        key
        for line in [asked]
        for key in _keys(template.line, line, answer)
        if template.question.format(key=key) == question
    )
    assert question.startswith(start)
    assert asked == template.line.format(key=key, value=answer)
    assert sum(f"{key}" in line for line in lines) == 1
    if depth is not None:
        assert abs(prompt.depth - depth) <= 0.5 / max(1, len(lines) - 1) + 1e-9


def _keys(form: str, line: str, value: str) -> list[str]:
    """Return what the key of a line may be, given its value."""
    before, after = form.replace("{value}", value).split("{key}")
    end = len(line) - len(after)
    return [line[len(before) : end]]


def test_the_same_seed_gives_the_same_prompt():
    prompts = [make_prompt(Letters(), TEMPLATES["code"], 900, Random(seed)) for seed in (3, 3, 4)]
    assert prompts[0] == prompts[1] != prompts[2]


def test_more_prompts_of_a_place_begin_with_the_fewer():
    few, many = (
        prompts_by_place(Letters(), TEMPLATES["code"], [600, 900], [0.0, 0.5], count, seed=1)
        for count in (2, 5)
    )
    assert list(few) == [(600, 0.0), (600, 0.5), (900, 0.0), (900, 0.5)]
    assert all(len(prompts) == 5 and prompts[:2] == few[at] for at, prompts in many.items())


@given(st.sampled_from(sorted(TEMPLATES)), st.integers(600, 3000), st.integers(0, 99))
def test_several_prompts_have_the_same_lines_and_ask_for_different_ones(name, length, seed):
    template = TEMPLATES[name]
    prompts = make_prompts(Letters(), template, length, Random(seed), 8)
    assert prompts[0] == make_prompt(Letters(), template, length, Random(seed))
    assert 1 < len(prompts) <= 8
    questions = set()
    for prompt in prompts:
        opening, *lines, question = text(prompt.tokens[1:]).split("\n")
        assert len(prompt.tokens) + len(prompt.answer) <= length
        assert (opening, lines) == (template.opening, text(prompts[0].tokens[1:]).split("\n")[1:-1])
        answer = text(prompt.answer).strip()
        asked = lines[round(prompt.depth * (len(lines) - 1))]
        (key,) = _keys(template.line, asked, answer)
        assert question == template.question.format(key=key)
        assert sum(template.line.format(key=key, value=answer) == line for line in lines) == 1
        questions.add(question)
    assert len(questions) == len(prompts)


def test_no_room():
    with pytest.raises(ValueError, match="room for two lines and a question, got 100"):
        make_prompt(Letters(), TEMPLATES["code"], 100, Random(0))


def test_what_is_fitted_and_what_is_tested_share_no_key_and_no_value():
    for words in ("fit", "test"):
        template = TEMPLATES["code"]
        prompt = make_prompt(Letters(), template, 2000, Random(0), words=words)
        pairs = [
            line.removeprefix("The code for ").removesuffix(".").split(" is ")
            for line in text(prompt.tokens).split("\n")[1:-1]
        ]
        assert len(pairs) > 20
        assert {is_for_tests(word) for pair in pairs for word in pair} == {words == "test"}
    assert set(HELD_OUT) < set(TEMPLATES)


@given(st.integers(0, 10**6))
def test_templates_are_drawn_that_hold_what_is_asked_for(seed):
    template = drawn_template(Random(seed))
    prompt = make_prompt(Letters(), template, 2000, Random(seed))
    whole, answer = text(prompt.tokens[1:]), text(prompt.answer).strip()
    assert "{" not in whole.replace('{"', "")
    asked = [line for line in whole.split("\n")[1 : prompt.pairs + 1] if answer in line]
    assert len(asked) >= 1
    assert drawn_template(Random(seed)) == template


def test_no_drawn_template_is_one_for_tests():
    kept = {TEMPLATES[name].line for name in HELD_OUT}
    drawn = {drawn_template(Random(seed)).line for seed in range(5000)}
    assert len(drawn) > 1000
    assert not drawn & kept
