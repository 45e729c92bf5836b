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
    from sharpmax.hf.calibrate.study import Calibration


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


def compared(found: Calibration) -> int:
    """Return how many policies are compared: plain attention, all along the way, the rivals."""
    return 1 + len(found.points) + len(RIVALS)


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    found: Calibration,
    examples: Examples,
    plan: Plan,
    tell: Callable[[int], None] = lambda _: None,
    known: Sequence[Score] = (),
) -> Iterator[list[Score]]:
    """Yield the scores of plain attention, of every policy along the way, and of their rivals.

    After plain attention comes the policy that is kept, and the slowest of the rivals is the last.
    Policies whose scores are `known`, all that the plan asks for, are not asked again.
    """
    first = found.chosen.name
    ours = {"plain": None, first: found.policies[first], **found.policies}
    left = []
    for case in (*ours, *RIVALS):
        scores = [score for score in known if score.case == case]
        if {
            (score.task, score.length, score.depth, score.samples) for score in scores
        } != plan.cells():
            left.append(case)
            continue
        tell(plan.tokens())
        yield scores
    mine = {case: policy for case, policy in ours.items() if case in left}
    yield from by_case(model, tokenizer, mine, plan, tell)
    if any(case in left for case in RIVALS):
        theirs = {case: p for case, p in rivals(model, examples).items() if case in left}
        yield from by_case(model, tokenizer, theirs, plan, tell)
