"""The cost of a sharpened language model beside the same model with its own attention.

On a GPU: reading 8,192 tokens, and writing one more after them, by SDPA and sharpened, in turn.
The model has the shape of SmolLM2-135M and random weights, in bf16; what is timed does not
depend on them. Writing is timed as transformers does it, one call after another from Python,
and as a replayed graph, where launching costs nothing.
On a CPU: SmolLM2-135M itself reading, and `diagnose` measuring every head of it meanwhile.

    python benchmarks/language_model.py    writes benchmarks/results/<device>/language_model.csv
"""

import copy
import resource
from collections.abc import Callable
from typing import Any

import torch
from measure import CUDA, PLACE, in_turn, keep, summary, timed
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

import sharpmax
from sharpmax.hf import diagnose, sharpen

LENGTH = 8192
CPU_ROUNDS = 3
SPARE = 2048
"""Places in the static cache beyond the tokens: every replay fills one more."""
SMOLLM2: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": LENGTH + 64,
}
POLICIES = {
    "own sdpa": None,
    "PAPER": sharpmax.PAPER,
    "LogLength": sharpmax.LogLength(2048, 0.2),
    "Fixed(1.0)": sharpmax.Fixed(1.0),
}


def reading(model: Any, tokens: torch.Tensor) -> Callable[[], object]:
    return lambda: model(tokens, use_cache=False, logits_to_keep=1)


def writing(model: Any, tokens: torch.Tensor) -> Callable[[], object]:
    """Return a step after a cache of all tokens but the last, which the step leaves as it was."""
    past = model(tokens[:, :-1], use_cache=True, logits_to_keep=1).past_key_values

    def step() -> object:
        out = model(tokens[:, -1:], past_key_values=past, use_cache=True)
        past.crop(-1)
        return out

    return step


def replayed(model: Any, tokens: torch.Tensor) -> Callable[[], object]:
    """Return the replay of that step as one graph, over a static cache."""
    cache = StaticCache(config=model.config, max_cache_len=LENGTH + SPARE)
    model(tokens[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
    last, place = tokens[:, -1:], torch.tensor([[LENGTH - 1]], device=PLACE)

    def step() -> object:
        return model(last, past_key_values=cache, use_cache=True, position_ids=place)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_kept: object = step) -> None:  # a graph does not keep what it works on
        graph.replay()

    return replay


@torch.no_grad()
def on_gpu() -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SMOLLM2)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = model.to(PLACE, torch.bfloat16).eval()
    tokens = torch.randint(SMOLLM2["vocab_size"], (1, LENGTH), device=PLACE)
    models = {name: copy.deepcopy(model) for name in POLICIES}
    for name, policy in POLICIES.items():
        if policy is not None:
            sharpen(models[name], policy)
    ways = {"reading": reading, "writing": writing, "writing, replayed": replayed}
    rows = []
    for what, make in ways.items():
        calls = {name: make(models[name], tokens) for name in POLICIES}
        times = in_turn(calls)
        rows += [row(what, name, times[name], times["own sdpa"]) for name in calls]
        keep("language_model", rows)


@torch.no_grad()
def on_cpu() -> None:
    from sharpmax.hf import load
    from sharpmax.hf.texts import reading as text

    model, tokenizer, _ = load("smollm2-135m")
    tokens = torch.tensor([text(tokenizer, None)(LENGTH, 0)])
    calls = {
        "own sdpa": lambda: model.base_model(tokens, use_cache=False),
        "diagnose, 64 to 8192": lambda: diagnose(model, tokenizer),
    }
    model.base_model(tokens[:, :512], use_cache=False)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(CPU_ROUNDS):  # they take minutes
        for name, call in calls.items():
            times[name].append(timed(call))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = [
        row("reading", name, times[name], times["own sdpa"]) | {"peak_mib": round(peak)}
        for name in calls
    ]
    keep("language_model", rows)


def row(what: str, name: str, times: list[float], plain: list[float]) -> dict[str, Any]:
    numbers = summary(times, plain)
    print(what, name, numbers)
    return {
        "what": what,
        "candidate": name,
        "tokens": LENGTH,
        "dtype": "bfloat16" if CUDA else "float32",
        "yardstick": "own sdpa",
        **numbers,
    }


if __name__ == "__main__":
    if CUDA:
        on_gpu()
    else:
        on_cpu()
