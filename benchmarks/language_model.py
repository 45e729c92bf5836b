"""The cost of a sharpened language model beside the same model with its own attention.

On a GPU: reading 8,192 tokens, and writing one more after them, by SDPA and sharpened, in turn.
The models have the shapes of SmolLM2-135M and -1.7B and random weights, in bf16; what is timed does
not depend on them. Each is timed as transformers does it, one operation after another from Python,
which small models wait for; beside that stands the time of the kernels by themselves. Writing is
timed as a replayed graph too, where launching costs nothing.
On a CPU: SmolLM2-135M itself reading, and `diagnose` measuring every head of it meanwhile.

    python benchmarks/language_model.py    writes benchmarks/results/<device>/language_model.csv
"""

import copy
import resource
from collections.abc import Callable
from typing import Any

import torch
from measure import CUDA, PLACE, device_ms, in_turn, keep, summary, timed
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

import sharpmax
from sharpmax.hf import diagnose, sharpen

LENGTH = 8192
CPU_ROUNDS = 3
SPARE = 2048
"""Places in the static cache beyond the tokens: every replay fills one more."""
TOKENS = 49152
SHAPES: dict[str, dict[str, int]] = {
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "smollm2-1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
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


def writing_replayed(model: Any, tokens: torch.Tensor) -> Callable[[], object]:
    """Return the replay of that step, over a static cache."""
    cache = StaticCache(config=model.config, max_cache_len=LENGTH + SPARE)
    model(tokens[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
    last, place = tokens[:, -1:], torch.tensor([[LENGTH - 1]], device=PLACE)
    return replay_of(lambda: model(last, past_key_values=cache, use_cache=True, position_ids=place))


def replay_of(step: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a step as one graph."""
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
    ways = {
        "reading": reading,
        "writing": writing,
        "writing, replayed": writing_replayed,
    }
    rows = []
    for shape, sizes in SHAPES.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            "llama", vocab_size=TOKENS, max_position_embeddings=LENGTH + 64, **sizes
        )
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", dtype=torch.bfloat16
        )
        model = model.to(PLACE).eval()
        tokens = torch.randint(TOKENS, (1, LENGTH), device=PLACE)
        models = {name: copy.deepcopy(model) for name in POLICIES}
        for name, policy in POLICIES.items():
            if policy is not None:
                sharpen(models[name], policy)
        for what, make in ways.items():
            calls = {name: make(models[name], tokens) for name in POLICIES}
            times = in_turn(calls)
            alone = {name: device_ms(call) for name, call in calls.items()}
            rows += [
                row(shape, what, name, times[name], times["own sdpa"])
                | {
                    "device_ms": round(alone[name], 3),
                    "device_ratio": round(alone[name] / alone["own sdpa"], 3),
                }
                for name in calls
            ]
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
        row("smollm2-135m", "reading", name, times[name], times["own sdpa"])
        | {"peak_mib": round(peak)}
        for name in calls
    ]
    keep("language_model", rows)


def row(shape: str, what: str, name: str, times: list[float], plain: list[float]) -> dict[str, Any]:
    numbers = summary(times, plain)
    print(shape, what, name, numbers)
    return {
        "model": shape,
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
