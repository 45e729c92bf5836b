"""A sharpened model: what its own attention gives, but for the temperature."""

import copy
import gc
import subprocess
import sys
import weakref

import pytest
import torch
from tiny_models import ARCHITECTURES, DECODERS, by_formula, tiny, tokens
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    DynamicCache,
    MambaConfig,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.masking_utils import eager_mask

from sharpmax import HELD, PAPER, Detached, EntropyCap, Fixed, LogLength, LogLinear, PerHead
from sharpmax.hf import sharpen
from sharpmax.hf.masks import MARK, KeyMask, visible_keys
from sharpmax.hf.request import Request

TOLERANCE = {"rtol": 0.0, "atol": 1e-5}
PADDINGS = ["none", "left", "right"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request):
    return tiny(request.param)


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request):
    return tiny(request.param)


@pytest.fixture(scope="module")
def llama():
    return tiny("llama")


@pytest.fixture(scope="module", autouse=True)
def formula():
    AttentionInterface.register("formula", by_formula)
    AttentionMaskInterface.register("formula", eager_mask)
    yield
    del AttentionInterface._global_mapping["formula"]
    del AttentionMaskInterface._global_mapping["formula"]


def padded(kind: str) -> Tensor | None:
    mask = torch.ones(2, 37, dtype=torch.long)
    if kind == "left":
        mask[1, :9] = 0
    if kind == "right":
        mask[1, -9:] = 0
    return None if kind == "none" else mask


APART = LogLinear(8, 0.3, 0.2, sink_apart=True, sink=-1.0, sink_by_length=0.8)


@torch.no_grad()
def outputs(model, mask: Tensor | None) -> Tensor:
    """Return the logits, or hidden states, of the tokens that are no padding."""
    seen = torch.ones(2, 37) if mask is None else mask
    return model(tokens(), attention_mask=mask)[0][seen.bool()]


@torch.no_grad()
def written(model, cache: str) -> list[list[int]]:
    """Return what the model writes greedily, twelve tokens."""
    out = model.generate(
        tokens(),
        attention_mask=padded("left"),
        cache_implementation=cache,
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        disable_compile=True,
    )
    return out[:, 37:].tolist()


@pytest.mark.parametrize("padding", PADDINGS)
def test_beta_of_one_is_the_models_own_attention(model, padding):
    mask = padded(padding)
    expected = outputs(model, mask)
    with sharpen(model, Fixed(1.0)):
        torch.testing.assert_close(outputs(model, mask), expected, **TOLERANCE)


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_papers_policy_is_eager_attention_by_the_formula(model, padding):
    mask = padded(padding)
    plain = outputs(model, mask)
    model.set_attn_implementation("formula")
    expected = outputs(model, mask)
    model.set_attn_implementation("eager")
    assert (plain - expected).abs().max() > 1e-3  # there is something to sharpen
    with sharpen(model, PAPER):
        torch.testing.assert_close(outputs(model, mask), expected, **TOLERANCE)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_beta_of_one_writes_the_same_text(decoder, cache):
    expected = written(decoder, cache)
    with sharpen(decoder, Fixed(1.0)):
        assert written(decoder, cache) == expected


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_papers_policy_writes_what_the_formula_writes(decoder, cache):
    decoder.set_attn_implementation("formula")
    expected = written(decoder, cache)
    decoder.set_attn_implementation("eager")
    with sharpen(decoder, PAPER):
        assert written(decoder, cache) == expected


@pytest.mark.parametrize("policy", [PAPER, APART], ids=["paper", "sink apart"])
@torch.no_grad()
def test_a_prompt_may_come_in_parts(decoder, policy):
    with sharpen(decoder, policy):
        whole = decoder(tokens()).logits
        first = decoder(tokens()[:, :20], use_cache=True)
        second = decoder(tokens()[:, 20:], past_key_values=first.past_key_values)
    parts = torch.cat((first.logits, second.logits), dim=1)
    torch.testing.assert_close(parts, whole, **TOLERANCE)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@torch.no_grad()
def test_a_sink_apart_is_the_same_however_a_text_is_read(decoder, cache):
    caches = {
        "dynamic": lambda model: DynamicCache(config=model.config),
        "static": lambda model: StaticCache(config=model.config, max_cache_len=64),
    }
    with sharpen(decoder, APART):
        new = torch.tensor(written(decoder, cache))
        text = torch.cat((tokens(), new), dim=1)
        mask = torch.cat((padded("left"), torch.ones_like(new)), dim=1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        again = decoder(text, attention_mask=mask, position_ids=positions).logits
        begun = decoder(
            text[:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=positions[:, :-1],
            past_key_values=caches[cache](decoder),
        )
        last = decoder(
            text[:, -1:],
            attention_mask=mask,
            position_ids=positions[:, -1:],
            past_key_values=begun.past_key_values,
        ).logits
        weighed = decoder(
            text, attention_mask=mask, position_ids=positions, output_attentions=True
        ).logits
    assert again[:, 36:-1].argmax(-1).tolist() == new.tolist()
    torch.testing.assert_close(last[:, 0], again[:, -1], **TOLERANCE)
    seen = mask.bool()
    torch.testing.assert_close(weighed[seen], again[seen], **TOLERANCE)


@pytest.mark.parametrize("policy", [HELD, EntropyCap(1.0), LogLength(8, 0.3), APART], ids=repr)
def test_padding_does_not_change_what_a_row_sees(llama, policy):
    with sharpen(llama, policy):
        alone = llama(tokens()[1:, 9:])[0]
        positions = torch.arange(37)[None].expand(2, -1) - torch.tensor([[0], [9]])
        together = llama(
            tokens(), attention_mask=padded("left"), position_ids=positions.clamp(min=0)
        )[0]
    torch.testing.assert_close(together[1:, 9:], alone, **TOLERANCE)


@torch.no_grad()
def test_a_policy_by_layer_and_head_reaches_that_head_alone(llama):
    betas = [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 3.0, 1.0]]
    plain = llama(tokens(), output_attentions=True).attentions
    with sharpen(llama, PerHead(Fixed(1.0), {"beta": betas})):
        sharpened = llama(tokens(), output_attentions=True).attentions
    changed = [
        [bool((a - b)[:, head].abs().max() > 1e-3) for head in range(4)]
        for a, b in zip(plain, sharpened, strict=True)
    ]
    assert changed == [[False] * 4, [False, False, True, False]]


@torch.no_grad()
def test_layers_without_numbers_pay_nothing_for_those_whose_sink_stands_apart(llama, monkeypatch):
    module = sys.modules["sharpmax.torch.attention"]
    taken = []
    of = module.SinkApart.of

    def counted(scores, value):
        taken.append(scores)
        return of(scores, value)

    monkeypatch.setattr(module.SinkApart, "of", counted)
    sinks = [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]]
    with sharpen(llama, PerHead(LogLinear(8, sink_apart=True), {"sink": sinks})):
        llama(tokens())
    assert len(taken) == 1


@torch.no_grad()
def test_weights_are_given_where_they_are_asked_for(model):
    plain = model(tokens(), output_attentions=True).attentions
    with sharpen(model, Fixed(1.0)):
        assert all(weights is None for weights in model(tokens()).attentions or [])
        weights = model(tokens(), output_attentions=True).attentions
    for ours, theirs in zip(weights, plain, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


def gradients(model) -> list[Tensor]:
    model.zero_grad()
    model(tokens(), labels=tokens()).loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_gradients_are_the_same_with_checkpointing():
    model = tiny("llama").train()
    model.set_attn_implementation("formula")
    expected = gradients(model)
    model.set_attn_implementation("eager")
    with sharpen(model, PAPER):
        plain = gradients(model)
        model.gradient_checkpointing_enable()
        checkpointed = gradients(model)
    for one, two, three in zip(expected, plain, checkpointed, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(three, two, rtol=1e-4, atol=1e-6)


def test_dropout_is_honoured_in_training():
    model = tiny("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.5).train()
    with sharpen(model, Fixed(1.0)):
        torch.manual_seed(0)
        ours = model(tokens())[0]
    torch.manual_seed(0)
    torch.testing.assert_close(ours, model(tokens())[0], **TOLERANCE)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@torch.no_grad()
def test_compiles(llama):
    with sharpen(llama, PAPER):
        expected = llama(tokens())[0]
        compiled = torch.compile(copy.deepcopy(llama), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(tokens())[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # by torch, while it traces
@pytest.mark.parametrize("policy", [Detached(PAPER), LogLength(16, 0.2)], ids=["entropy", "length"])
def test_layers_in_training_compile_whole_and_once_for_all(policy):
    model = tiny("llama").train()
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    with sharpen(model, policy):
        expected = [model(tokens()[:, :n], use_cache=False)[0] for n in (20, 30, 37)]
        torch._dynamo.reset()
        for layer in model.model.layers:
            layer.compile(backend=counted, fullgraph=True)
        found = [model(tokens()[:, :n], use_cache=False)[0] for n in (20, 30, 37)]
        sum(logits.sum() for logits in found).backward()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(model.model.layers) > 1
    assert len(graphs) == 2  # of the first length, and of any


@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(llama):
    positions = torch.cat((torch.arange(20), torch.arange(17)))[None]
    with sharpen(llama, PAPER):
        packed = llama(tokens()[:1], position_ids=positions, use_cache=False)[0]
        apart = [llama(part)[0] for part in tokens()[:1].split([20, 17], dim=1)]
    torch.testing.assert_close(packed, torch.cat(apart, dim=1), **TOLERANCE)


@torch.no_grad()
def test_a_model_spread_by_accelerate(llama):
    from accelerate import dispatch_model

    with sharpen(llama, PAPER):
        expected = llama(tokens())[0]
    spread = dispatch_model(copy.deepcopy(llama), {"": "cpu"}, force_hooks=True)
    with sharpen(spread, PAPER):
        torch.testing.assert_close(spread(tokens())[0], expected, **TOLERANCE)


@torch.no_grad()
def test_half_precision():
    model = tiny("llama").to(torch.bfloat16)
    expected = model(tokens())[0]
    with sharpen(model, Fixed(1.0)):
        torch.testing.assert_close(model(tokens())[0], expected, rtol=0.0, atol=0.1)


def test_masks_take_one_entry_a_key_where_they_can():
    arguments = {"batch_size": 2, "q_length": 37, "kv_length": 37}
    assert visible_keys(**arguments) is None
    mask = visible_keys(**arguments, attention_mask=padded("left").bool())
    assert mask.shape == (2, 1, 1, 37)
    assert getattr(mask, MARK) == KeyMask(window=None, is_padded=True)
    assert visible_keys(2, 17, 37, q_offset=20).shape == (1, 1, 1, 37)
    assert visible_keys(2, 17, 64, q_offset=20).shape == (2, 1, 17, 64)  # a static cache's end


def test_windows_are_told_by_the_mask():
    from transformers.masking_utils import sliding_window_causal_mask_function

    mask = visible_keys(1, 37, 37, mask_function=sliding_window_causal_mask_function(8))
    assert getattr(mask, MARK) == KeyMask(window=8, is_padded=False)


@torch.no_grad()
def test_a_mask_of_ones_own_is_the_whole_mask(llama):
    mask = torch.ones(2, 1, 37, 37, dtype=torch.bool).tril(5)  # five tokens ahead are seen too
    llama.set_attn_implementation("sdpa")
    expected = llama(tokens(), attention_mask=mask)[0]
    llama.set_attn_implementation("eager")
    with sharpen(llama, Fixed(1.0)):
        torch.testing.assert_close(llama(tokens(), attention_mask=mask)[0], expected, **TOLERANCE)


def test_undo_gives_the_models_attention_back(llama):
    expected = outputs(llama, None)
    switch = sharpen(llama, PAPER)
    assert not torch.allclose(outputs(llama, None), expected)
    switch.undo()
    switch.undo()
    assert llama.config._attn_implementation == "eager"
    assert switch.name not in AttentionInterface._global_mapping
    assert switch.name not in AttentionMaskInterface._global_mapping
    torch.testing.assert_close(outputs(llama, None), expected, rtol=0.0, atol=0.0)


def test_sharpenings_are_undone_in_turn(llama):
    with sharpen(llama, Fixed(2.0)) as outer:
        expected = outputs(llama, None)
        with sharpen(llama, Fixed(3.0)), pytest.raises(RuntimeError, match="later first"):
            outer.undo()
        torch.testing.assert_close(outputs(llama, None), expected, rtol=0.0, atol=0.0)


def test_a_block_ends_whatever_was_done_within(llama):
    with sharpen(llama, PAPER) as switch:
        llama.set_attn_implementation("sdpa")
    assert llama.config._attn_implementation == "sdpa"
    assert switch.name not in AttentionInterface._global_mapping
    llama.set_attn_implementation("eager")


def test_a_switch_does_not_keep_a_model_alive():
    model = tiny("bert")
    kept = weakref.ref(model)
    switch = sharpen(model, PAPER)
    name = switch.name
    del model, switch
    gc.collect()
    assert kept() is None
    del AttentionInterface._global_mapping[name], AttentionMaskInterface._global_mapping[name]


def test_an_error_within_leaves_nothing_behind(llama):
    with pytest.raises(KeyError), sharpen(llama, PAPER):
        raise KeyError
    assert llama.config._attn_implementation == "eager"


def test_a_policy_for_another_model(llama):
    with pytest.raises(ValueError, match="3 layers of 4 heads, and LlamaForCausalLM has 2 layers"):
        sharpen(llama, PerHead(Fixed(1.0), {"beta": [[1.0] * 4] * 3}))
    with pytest.raises(ValueError, match="for 5 heads"):
        sharpen(llama, PerHead(Fixed(1.0), {"beta": [1.0] * 5}))
    with pytest.raises(ValueError, match="for 5 heads"):
        sharpen(llama, Detached(PerHead(Fixed(1.0), {"beta": [1.0] * 5})))
    assert llama.config._attn_implementation == "eager"


def test_what_cannot_be_sharpened(llama):
    with pytest.raises(TypeError, match="model must be a transformers model, got Linear"):
        sharpen(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="policy must be"):
        sharpen(llama, "paper")
    with sharpen(llama), pytest.raises(NotImplementedError, match="give a boolean one"):
        llama(tokens(), attention_mask=torch.zeros(2, 1, 37, 37))
    query = torch.zeros(1, 4, 3, 16)
    with pytest.raises(NotImplementedError, match="Linear chooses the keys of every query"):
        Request.of(torch.nn.Linear(1, 1), query, query, query, None, indices=torch.zeros(1))
    sizes = {"vocab_size": 97, "d_model": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2}
    t5 = T5ForConditionalGeneration(T5Config(**sizes))
    with (
        pytest.raises((ValueError, NotImplementedError), match="position bias|interface"),
        sharpen(t5),
    ):
        t5(input_ids=tokens(), decoder_input_ids=tokens())
    with pytest.raises(ValueError, match="has several parts with heads of their own"):
        sharpen(t5, PerHead(Fixed(1.0), {"beta": [1.0, 1.0]}))
    mamba = AutoModelForCausalLM.from_config(MambaConfig(hidden_size=8, num_hidden_layers=1))
    with pytest.raises(ValueError, match="MambaForCausalLM has no attention heads"):
        sharpen(mamba)


def test_nothing_is_registered_by_importing():
    code = (
        "from transformers import AttentionInterface as A, AttentionMaskInterface as M\n"
        "before = [*A._global_mapping, *M._global_mapping]\n"
        "import sharpmax.hf\n"
        "assert [*A._global_mapping, *M._global_mapping] == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
