"""The calibrated policy beside others, on the same prompts and the same text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sharpmax.hf.calibrate.rivals import RIVALS, rivals
from sharpmax.hf.evaluate import Plan, Score, by_case, require_possible
from sharpmax.hf.sharpen import context_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sharpmax.hf.calibrate.examples import Examples
    from sharpmax.hf.calibrate.points import Calibration


PLAIN = "plain"
"""What plain attention is called."""


def comparison_plan(
    model: PreTrainedModel, examples: Examples, prompts: int, book: str | None = None
) -> Plan:
    """Return how to compare policies: at half the length that is fitted to, at it, and at twice it.

    Args:
        model: That is calibrated.
        examples: That it is calibrated with.
        prompts: For each of the templates that are held out, and each length; at least.
        book: To read; the part of the text that nothing is fitted to if None.

    Raises:
        ValueError: If the prompts do not fit.
    """
    settings, most = examples.settings, context_of(model)
    if book is None:  # Text that is read as letters again may have a few tokens fewer.
        book, most = examples.checked_text(), min(most, 0.95 * examples.checked_tokens)
    shortest = max(settings.shortest, settings.length // 2)
    lengths = [shortest, settings.length, 2 * settings.length]
    within = [length for length in lengths if length <= most] or [shortest // 2]
    plan = Plan(within, text=book, prompts=-(-prompts // len(Plan().depths))).within(model)
    require_possible(plan, examples.tokenizer)
    return plan


def compared_cases(found: Calibration) -> list[str]:
    """Return what is compared: plain attention, the policy that is chosen, all others, rivals."""
    ours = dict.fromkeys([found.chosen.name, *(point.name for point in found.points)])
    return [PLAIN, *ours, *RIVALS]


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    found: Calibration,
    examples: Examples,
    plan: Plan,
    tell: Callable[[int], None] = lambda _: None,
    known: Sequence[Score] = (),
) -> Iterator[list[Score]]:
    """Yield the scores of all `compared_cases`, the slowest of the rivals last.

    First come those whose scores are `known`, all that the plan asks for: they are not asked again.
    """
    left = []
    for case in compared_cases(found):
        scores = [score for score in known if score.case == case]
        if plan.is_done(scores):
            tell(plan.tokens())
            yield scores
        else:
            left.append(case)
    mine = {case: found.policies.get(case) for case in left if case not in RIVALS}
    if mine:
        yield from by_case(model, tokenizer, mine, plan, tell)
    if len(left) > len(mine):
        theirs = {case: p for case, p in rivals(model, examples).items() if case in left}
        yield from by_case(model, tokenizer, theirs, plan, tell)
