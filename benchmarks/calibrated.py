"""What a calibrated policy costs SmolLM2-135M in time: reading, and writing a token after that.

Beside the model's own attention and the policy stands `Fixed(1.0)`, which computes what the model
does: what it costs is the way through sharpmax.

    python benchmarks/calibrated.py    writes benchmarks/results/<device>/calibrated.csv
"""

import copy

import torch
from language_model import reading, writing
from measure import PLACE, RESULTS, in_turn, keep, summary

from sharpmax import Fixed, Policy
from sharpmax.hf import load, sharpen
from sharpmax.hf.texts import reading as text

LENGTHS = (1024, 2048, 4096)
POLICY = RESULTS.parent / "h200" / "calibrate" / "larger-steps" / "cost-0.6.json"


@torch.no_grad()
def main() -> None:
    own, tokenizer, _ = load("smollm2-135m", dtype=torch.bfloat16, device=PLACE)
    models = {"own sdpa": own}
    for name, policy in {"Fixed(1.0)": Fixed(1.0), "calibrated": Policy.load(POLICY)}.items():
        models[name] = copy.deepcopy(own)
        sharpen(models[name], policy)
    rows = []
    for length in LENGTHS:
        tokens = torch.tensor([text(tokenizer, None)(length, 0)], device=PLACE)
        for what, make in {"reading": reading, "writing": writing}.items():
            times = in_turn({name: make(model, tokens) for name, model in models.items()})
            for name in models:
                numbers = summary(times[name], times["own sdpa"])
                print(what, length, name, numbers, flush=True)
                rows.append(
                    {
                        "model": "smollm2-135m",
                        "what": what,
                        "candidate": name,
                        "tokens": length,
                        "dtype": "bfloat16",
                        "yardstick": "own sdpa",
                        **numbers,
                    }
                )
            keep("calibrated", rows)


if __name__ == "__main__":
    main()
