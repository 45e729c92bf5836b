"""How well `calibrate` does on templates, keys, values and a book that it never sees.

Fits a policy at up to 2,048 tokens, and asks at 1,024, 2,048 and 4,096: of plain attention, of its
rivals, and of every policy along the way, each on the same 1,000 prompts a length and the same
pages.

    python benchmarks/calibrate.py MODEL --text FILE ... --book FILE

writes the table and the policies to benchmarks/results/<device>/calibrate/<name>; with `--policy`
a policy that was fitted elsewhere is asked, and nothing is fitted. The texts of the
results that are committed are Python's own reference (`prose`), and alice29, asyoulik, lcet10 and
plrabn12 of the Canterbury corpus, which lie in the source of the package brotli; the book is
Moby Dick.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from measure import CUDA, PLACE, RESULTS, circumstances
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sharpmax import Policy
from sharpmax.hf import Score, load
from sharpmax.hf.calibrate import (
    RIVALS,
    Examples,
    HeadChange,
    Settings,
    calibrate,
    comparison_plan,
    head_changes,
    rivals,
)
from sharpmax.hf.evaluate import by_case
from sharpmax.hf.table import write_csv
from sharpmax.hf.texts import prose

DEPTHS = tuple((2 * i + 1) / 20 for i in range(10))
PROMPTS = 25
"""A template, length and depth; four templates and ten depths make 1,000."""
WINDOWS = 12
TOLD_EVERY = 20
"""Steps between two lines of progress."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--name", default="smollm2-135m")
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--book", type=Path, required=True)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--prompts", type=int, default=Settings.prompts)
    parser.add_argument("--asked", type=int, default=Settings.asked)
    parser.add_argument("--texts", type=int, default=Settings.texts)
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--cost", type=float, action="append", default=[])
    parser.add_argument("--max-text-loss", type=float, default=Settings.max_text_loss)
    parser.add_argument("--learning-rate", type=float, default=Settings.learning_rate)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--check-every", type=int, default=Settings.check_every)
    parser.add_argument("--check-prompts", type=int, default=Settings.check_prompts)
    parser.add_argument("--check-texts", type=int, default=Settings.check_texts)
    parser.add_argument("--dtype", default="bfloat16" if CUDA else "float32")
    parser.add_argument("--heads", type=int, nargs="*", default=[64, 32, 16, 8])
    parser.add_argument("--start", type=Path, help="a policy to go on from")
    parser.add_argument("--policy", type=Path, help="to ask under, rather than fit one")
    parser.add_argument("--no-entropy", action="store_true")
    parser.add_argument("--no-sink", action="store_true")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--case", action="append", help="a policy to ask under; all if none")
    parser.add_argument(
        "--ask-prompts", type=int, default=PROMPTS, help="a template, length and depth"
    )
    parser.add_argument("--ask", type=int, nargs="*", help="at these lengths; the plan's if none")
    parser.add_argument("--out", type=Path, default=RESULTS / "calibrate")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    folder = asked.out / asked.name
    model, tokenizer, _ = load(asked.model, dtype=getattr(torch, asked.dtype), device=PLACE)
    texts = [prose(), *(Path(name).read_text(errors="replace") for name in asked.text)]
    settings = Settings(
        length=asked.length,
        steps=asked.steps,
        prompts=asked.prompts,
        asked=asked.asked,
        texts=asked.texts,
        at_once=asked.at_once,
        costs=tuple(asked.cost),
        max_text_loss=asked.max_text_loss,
        learning_rate=asked.learning_rate,
        seed=asked.seed,
        check_every=asked.check_every,
        check_prompts=asked.check_prompts,
        check_texts=asked.check_texts,
        heads=tuple(asked.heads),
        entropy=not asked.no_entropy,
        sink=not asked.no_sink,
    )
    examples = Examples(tokenizer, settings, texts)
    begun = time.perf_counter()
    if asked.policy is None:
        policies = fitted(asked, folder, model, tokenizer, examples, texts)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        policies = {"calibrated": Policy.load(asked.policy)}
        write_run(folder, {"policy": asked.policy, "dtype": asked.dtype, **circumstances()})
    plan = comparison_plan(model, examples, 1, asked.book.read_text())
    plan = replace(plan, windows=WINDOWS, depths=DEPTHS, prompts=asked.ask_prompts)
    lengths = (plan.lengths or ()) if asked.ask is None else asked.ask
    if not lengths:
        return
    cases = {"plain": None, **policies}
    if not asked.no_rivals and any(name in RIVALS for name in asked.case or RIVALS):
        cases |= rivals(model, examples)
    cases = {name: cases[name] for name in asked.case or cases}
    scores: list[Score] = []
    for length in lengths:
        for some in by_case(model, tokenizer, cases, replace(plan, lengths=(length,))):
            scores += some
            write_csv(folder / "scores.csv", Score, scores)
            print(told(some, scores), f"{time.perf_counter() - begun:.0f} s", flush=True)


def fitted(
    asked: argparse.Namespace,
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    texts: list[str],
) -> Mapping[str, Policy]:
    """Fit, leave what was found and how in the folder, and return every policy on the way."""
    settings = examples.settings
    begun, last, done = time.perf_counter(), "", 0

    def tell(stage: str, steps: int) -> None:
        nonlocal last, done
        done += steps
        if stage != last or (steps and done % TOLD_EVERY == 0):
            print(f"{time.perf_counter() - begun:.0f} s: {stage}, {done} steps", flush=True)
            last = stage

    found = calibrate(
        model,
        tokenizer,
        settings,
        text=texts,
        start=None if asked.start is None else Policy.load(asked.start),
        folder=folder,
        name=Path(asked.model).name,
        tell=tell,
    )
    seconds = time.perf_counter() - begun
    print(f"{seconds:.0f} s. plain: {found.plain}", flush=True)
    for point in found.points:
        print(point, flush=True)
    if found.policy is not None:
        write_csv(folder / "heads.csv", HeadChange, head_changes(found.policy, settings.length))
    details = {
        "seconds": round(seconds),
        "start": asked.start,
        "dtype": asked.dtype,
        **circumstances(),
        **asdict(settings),
    }
    write_run(folder, details)
    return found.policies


def write_run(folder: Path, details: Mapping[str, object]) -> None:
    lines = [f"{name},{str(value).replace(',', ';')}" for name, value in details.items()]
    (folder / "run.csv").write_text("\n".join(["what,value", *lines]) + "\n")


def told(scores: list[Score], every: list[Score]) -> str:
    """Return a policy's line at one length: what was found, and what text paid over the first."""
    case, length = scores[0].case, scores[0].length
    text = next(score.value for score in scores if score.depth is None)
    first = next(s.value for s in every if s.length == length and s.depth is None)
    shares = [score.value for score in scores if score.depth is not None]
    return f"{case}, {length}: {sum(shares) / len(shares):.3f} {text / first - 1:+.2%}"


if __name__ == "__main__":
    main()
