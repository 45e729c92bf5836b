"""Training on CLRS-Text and asking what was learned: tokens, order, resuming, processes, LoRA."""

import csv
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertLMHeadModel

from sharpmax import PAPER, Fixed, PerHead, Policy
from sharpmax.hf import load as load_model
from sharpmax.hf.sharpen import sharpen
from sharpmax.tasks.clrs import Recipe, generate, load, samples
from sharpmax.tasks.clrs import train as training
from sharpmax.tasks.clrs.decoder import CONTEXT, decoder
from sharpmax.tasks.clrs.entropies import Entropy, entropies
from sharpmax.tasks.clrs.evaluate import Answers, evaluate
from sharpmax.tasks.clrs.folder import Folder, alike
from sharpmax.tasks.clrs.presets import PRESETS
from sharpmax.tasks.clrs.sequences import IGNORED, ByLength, Collator, Sequences
from sharpmax.tasks.clrs.settings import Settings
from sharpmax.tasks.clrs.tokens import character_tokenizer
from sharpmax.tasks.clrs.train import about, train, trained_sizes

TINY = Settings(decoder="tiny", context=128, batch=8, steps=6, save_every=2)


@pytest.fixture(scope="module")
def small_set(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clrs") / "set"
    generate(Recipe({"minimum": (4, 6), "bfs": (4,)}, each=20, trace=False), folder, workers=1)
    return folder


@pytest.fixture
def tokenizer():
    return character_tokenizer()


def losses(folder):
    with (folder / "loss.csv").open() as file:
        return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]


def test_every_character_is_a_token_and_comes_back(tokenizer, small_set, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    from transformers import AutoTokenizer

    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        for row in load(small_set).to_pylist():
            text = row["question"] + row["answer"]
            tokens = one(text)["input_ids"]
            assert len(tokens) == len(text) + 1
            assert one.decode(tokens, skip_special_tokens=True) == text
        assert one.unk_token_id not in one("0.548 |(), trace\n")["input_ids"]


def test_only_answers_are_learned_and_long_samples_are_counted(tokenizer, small_set):
    table = load(small_set)
    sequences = Sequences.of(table, tokenizer, 1000)
    assert len(sequences) == table.num_rows
    assert not sequences.too_long
    samples = [sequences[i] for i in (0, 25, 59)]
    batch = Collator(tokenizer.pad_token_id, 1000)(samples)
    assert batch["input_ids"].shape[1] % 8 == 0
    for row, number in enumerate((0, 25, 59)):
        asked = table.slice(number, 1).to_pylist()[0]
        learned = batch["labels"][row][batch["labels"][row] != IGNORED]
        assert tokenizer.decode(learned) == asked["answer"] + "<eos>"
        kept = batch["input_ids"][row][batch["labels"][row] == IGNORED]
        assert tokenizer.decode(kept, skip_special_tokens=True) == asked["question"]
    short = Sequences.of(table, tokenizer, 60)
    assert sum(short.too_long.values()) == table.num_rows - len(short) > 0


def test_batches_hold_samples_of_about_one_length_and_no_sample_twice():
    lengths = np.random.default_rng(0).integers(10, 500, 1003)
    sequences = Sequences(np.zeros(0), np.cumsum([0, *lengths]), np.zeros(1003), {}, {})
    order = ByLength(sequences, 16, seed=3)
    first = list(order)
    assert len({*first}) == len(first) == len(order) == 1003 // 16 * 16
    assert first == list(order)
    spreads = [np.ptp(lengths[first[i : i + 16]]) for i in range(0, len(first), 16)]
    assert np.median(spreads) < 150  # of 430 by chance
    order.set_epoch(1)
    assert list(order) != first


def test_parts_of_a_batch_are_each_of_a_length_of_their_own():
    lengths = np.random.default_rng(0).integers(10, 500, 1003)
    sequences = Sequences(np.zeros(0), np.cumsum([0, *lengths]), np.zeros(1003), {}, {})
    order = list(ByLength(sequences, 16, seed=3, parts=4))
    assert len({*order}) == len(order) == 1003 // 16 * 16
    of_parts, of_batches = (
        np.median([np.ptp(lengths[order[i : i + n]]) for i in range(0, len(order), n)])
        for n in (4, 16)
    )
    assert of_parts < 50 < 200 < of_batches


def test_tokens_are_kept_beside_the_data(tokenizer, small_set, tmp_path):
    folder = tmp_path / "set"
    shutil.copytree(small_set, folder)
    for kept in folder.glob("tokens-*"):
        kept.unlink()
    first = Sequences.of_folder(folder, tokenizer, 60)
    (kept,) = folder.glob("tokens-*")
    assert first.tokens.dtype == np.uint8
    for name in load_names(folder):
        (folder / name).unlink()  # they are not read again
    again = Sequences.of_folder(folder, tokenizer, 60)
    for name in ("tokens", "starts", "answers"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert (first.sizes, first.too_long) == (again.sizes, again.too_long)
    with pytest.raises(ValueError, match="is missing: sharpmax clrs generate"):
        Sequences.of_folder(folder, tokenizer, 61)  # another context, other tokens
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(ValueError, match="is missing: sharpmax clrs generate"):
        Sequences.of_folder(folder, tokenizer, 60)


def test_tokens_that_cannot_be_kept_are_made_all_the_same(tokenizer, small_set, monkeypatch):
    wanted = len(Sequences.of_folder(small_set, tokenizer, 60))
    nowhere = pathlib.Path("/proc/nowhere/tokens.safetensors")
    monkeypatch.setattr("sharpmax.tasks.clrs.sequences._place", lambda *_: nowhere)
    assert len(Sequences.of_folder(small_set, tokenizer, 60)) == wanted


def load_names(folder):
    return json.loads((folder / "clrs.json").read_text())["files"]


def test_a_model_learns_what_it_is_shown_and_says_so(small_set, tmp_path):
    settings = dataclasses.replace(TINY, batch=20, steps=150, learning_rate=3e-3, save_every=1000)
    told = []
    found = train(
        small_set,
        tmp_path / "model",
        settings,
        on_cpu=True,
        tell=lambda step, _: told.append(step),
    )
    assert told == list(range(1, 151))
    assert found.samples == 60
    model, tokenizer, policy = load_model(tmp_path / "model")
    assert policy is None
    assert trained_sizes(tmp_path / "model") == {"bfs": [4], "minimum": [4, 6]}
    table = load(small_set)
    answers = evaluate(model, tokenizer, table, trained={"minimum": [4, 6]}, at_once=7)
    assert [(a.algorithm, a.size, a.trained) for a in answers] == [
        ("bfs", 4, False),
        ("minimum", 4, True),
        ("minimum", 6, True),
    ]
    right, asked = sum(a.right for a in answers), sum(a.asked for a in answers)
    assert asked == 60
    assert right > 40
    assert losses(tmp_path / "model")[-1][1] == pytest.approx(found.loss)
    # Greedy writing is right where every token of the answer is the likeliest.
    read = Sequences.of(table, tokenizer, 1000)
    likeliest_too = 0
    with torch.no_grad():
        for i in range(60):
            batch = Collator(0, 1000)([read[i]])
            labels = batch["labels"][:, 1:]
            likeliest = model(batch["input_ids"]).logits[:, :-1].argmax(-1)
            likeliest_too += bool(((likeliest == labels) | (labels == IGNORED)).all())
    assert right == likeliest_too


def writes(model, tokenizer, table, answers):
    """Let a model read nothing of any right answer, and write these."""
    model.lm_head.weight.data.zero_()
    texts = dict(zip((row["question"] for row in table.to_pylist()), answers, strict=True))

    def generate(tokens, max_new_tokens, **_):
        asked = [tokenizer.decode(row, skip_special_tokens=True) for row in tokens]
        ids = [tokenizer(texts[one], add_special_tokens=False)["input_ids"] for one in asked]
        filled = [[*row, *[tokenizer.pad_token_id] * max_new_tokens] for row in ids]
        return torch.cat([tokens, torch.tensor([row[:max_new_tokens] for row in filled])], 1)

    model.generate = generate


@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_results_count_whatever_steps_come_before_them_and_end_in_time(
    tokenizer, tmp_path, at_once
):
    generate(Recipe({"minimum": (4, 6)}, each=6), tmp_path / "set", workers=1)
    table = load(tmp_path / "set")
    wanted = [row["answer"] for row in table.to_pylist()]
    model = decoder("tiny", tokenizer)
    for before, end, right in (
        ("9, 9 | ", "<eos>", 6),  # other steps
        ("9, 9 | ", "", 0),  # no end
        ("0, " * 200 + " | ", "<eos>", 0),  # the end comes too late
    ):
        written = [before + answer.rsplit(" | ", 1)[1] + end for answer in wanted]
        writes(model, tokenizer, table, written)
        found = evaluate(model, tokenizer, table, at_once=at_once)
        assert [(row.right, row.whole, row.asked) for row in found] == [(right, 0, 6)] * 2


def test_what_is_trained_on_and_what_lies_beyond(tokenizer, small_set):
    model = decoder("tiny", tokenizer)
    for sizes, told in (
        ({"minimum": [4, 5]}, [(False, False), (True, False), (False, True)]),
        ({"minimum": [8], "bfs": [4]}, [(True, False), (False, False), (False, False)]),
    ):
        found = evaluate(model, tokenizer, load(small_set), trained=sizes)
        assert [(row.trained, row.beyond) for row in found] == told


def test_results_of_one_folder_are_of_the_same_questions(tmp_path):
    about, made_of = {"files": ["a"]}, {"policy": None}
    row = Answers("plain", 0, "bfs", 4, True, False, 1, 2, 0.5, 0.1, 0.9, 1, 0)
    head = Entropy("plain", 0, "bfs", 4, 0, 1, 0.25, 0.5)
    Folder(tmp_path, about).add("plain", 0, made_of, [row], [head])
    found = Folder.open(tmp_path, about)
    assert (found.answers, found.entropies) == ([row], [head])
    assert found.holds("plain", 0, made_of)
    assert not found.holds("plain", 1, made_of)
    with pytest.raises(ValueError, match="another model that is called plain, seed 0"):
        found.holds("plain", 0, {"policy": PAPER.to_dict()})
    with pytest.raises(ValueError, match="another model that is called plain, seed 0"):
        found.holds("plain", 1, {"policy": PAPER.to_dict()})  # it would be pooled with the first
    with pytest.raises(ValueError, match="holds answers to other questions"):
        Folder.open(tmp_path, {"files": ["b"]})
    found.add("paper", 0, made_of, [dataclasses.replace(row, case="paper")], [])
    told = json.loads((tmp_path / "evaluation.json").read_text())
    del told["cases"]["paper, seed 0"]  # as if stopped before it was whole
    (tmp_path / "evaluation.json").write_text(json.dumps(told))
    assert Folder.open(tmp_path, about).answers == [row]
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".new")]
    (tmp_path / "answers.csv").write_text("case\nplain\n")
    with pytest.raises(ValueError, match="cannot be read"):
        Folder.open(tmp_path, about)


def test_two_evaluations_into_one_folder_lose_nothing(tmp_path):
    one, other = (Folder.open(tmp_path, {}) for _ in range(2))
    one.add("plain", 0, {}, [], [])
    other.add("paper", 0, {}, [], [])
    assert {*Folder.open(tmp_path, {}).cases} == {"plain, seed 0", "paper, seed 0"}


def test_cases_differ_by_their_seeds_alone():
    training = {"data": {}, "settings": {"seed": 0, "steps": 10}}
    other = {"data": {}, "settings": {"seed": 1, "steps": 10}}
    longer = {"data": {}, "settings": {"seed": 0, "steps": 20}}
    assert alike({"training": training, "policy": None}, {"training": other, "policy": None})
    assert not alike({"training": training, "policy": None}, {"training": longer, "policy": None})
    fixed, sharper = Fixed(1.0).to_dict(), Fixed(2.0).to_dict()
    assert not alike({"policy": fixed}, {"policy": sharper})
    fitted = [PerHead(Fixed(1.0), {"beta": [beta]}).to_dict() for beta in (1.0, 2.0)]
    assert alike(*({"policy": policy} for policy in fitted))
    assert not alike({"policy": fitted[0]}, {"policy": fixed})


def test_questions_over_the_context_are_counted_and_not_asked(tokenizer, small_set):
    model = decoder("tiny", tokenizer)
    model.config.max_position_embeddings = 60
    answers = evaluate(model, tokenizer, load(small_set))
    assert sum(a.too_long for a in answers) > 0
    for row in answers:
        assert row.asked + row.too_long == 20
        assert 0 <= row.low <= row.share <= row.high <= 1


def test_policies_in_training_and_at_inference(small_set, tmp_path):
    plain = train(small_set, tmp_path / "plain", TINY, on_cpu=True)
    sharp = train(small_set, tmp_path / "sharp", TINY, PAPER, on_cpu=True)
    assert plain.loss != sharp.loss
    model, tokenizer, policy = load_model(tmp_path / "sharp")
    assert policy == PAPER
    assert about(tmp_path / "sharp")["policy"] == PAPER.to_dict()
    assert Policy.from_dict(about(tmp_path / "sharp")["policy"]) == PAPER
    tokens = torch.tensor([tokenizer("minimum:\nkey: [0.5 0.1 0.9")["input_ids"]])
    with torch.no_grad():
        before = model(tokens).logits
        with sharpen(model, policy):
            assert not torch.equal(model(tokens).logits, before)
    heads = entropies(model, tokenizer, load(small_set), policy, case="sharp", each=1)
    assert {(h.algorithm, h.size) for h in heads} == {("bfs", 4), ("minimum", 4), ("minimum", 6)}
    assert len(heads) == 3 * 2 * 2
    assert all(h.case == "sharp" and 0 <= h.share <= 1.0001 for h in heads)


def test_bfloat16_is_near_float32_under_a_policy_too(small_set, tmp_path):
    found = [
        train(
            small_set,
            tmp_path / str(bf16),
            dataclasses.replace(TINY, bf16=bf16, steps=2),
            PAPER,
            on_cpu=True,
        ).loss
        for bf16 in (False, True)
    ]
    assert found[0] != found[1]
    assert found[0] == pytest.approx(found[1], rel=0.02)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # by torch, while it traces
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_model_learns_the_same(small_set, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "COMPILER", "aot_eager")  # which needs no C compiler
    found = [
        train(
            small_set,
            tmp_path / str(compiled),
            dataclasses.replace(TINY, compile=compiled, steps=3),
            PAPER,
            on_cpu=True,
        ).loss
        for compiled in (False, True)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    plain, compiled = (
        load_file(tmp_path / name / "model.safetensors") for name in ("False", "True")
    )
    assert plain.keys() == compiled.keys()


def test_another_training_and_other_bad_values_are_refused(small_set, tmp_path):
    train(small_set, tmp_path / "model", dataclasses.replace(TINY, steps=1), on_cpu=True)
    for settings, policy, other in (
        (dataclasses.replace(TINY, steps=1, decoder="small"), None, "settings"),
        (dataclasses.replace(TINY, steps=1), PAPER, "policy"),
    ):
        with pytest.raises(ValueError, match=f"holds a training with other {other}"):
            train(small_set, tmp_path / "model", settings, policy, on_cpu=True)
    with pytest.raises(ValueError, match="no sample of .* fits into a context of 16 tokens"):
        train(small_set, tmp_path / "b", dataclasses.replace(TINY, context=16), on_cpu=True)
    assert not (tmp_path / "b").exists()
    with pytest.raises(ValueError, match=r"not finite at step \d: lower the learning rate, 1e\+30"):
        train(small_set, tmp_path / "n", dataclasses.replace(TINY, learning_rate=1e30), on_cpu=True)
    assert not (tmp_path / "n" / "model.safetensors").exists()
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertLMHeadModel(BertConfig(**small)).save_pretrained(tmp_path / "bert")
    character_tokenizer().save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="bert reads what comes later"):
        train(
            small_set,
            tmp_path / "e",
            dataclasses.replace(TINY, model=str(tmp_path / "bert")),
            on_cpu=True,
        )
    settings = dataclasses.replace(TINY, model=str(tmp_path / "model"))
    with pytest.raises(ValueError, match="holds the weights to begin with"):
        train(small_set, tmp_path / "model", settings, on_cpu=True)
    with pytest.raises(ValueError, match="batch must be a multiple of 1 processes times 3 parts"):
        train(small_set, tmp_path / "c", dataclasses.replace(TINY, accumulation=3), on_cpu=True)
    with pytest.raises(ValueError, match="holds no CLRS-Text"):
        train(tmp_path, tmp_path / "d", TINY, on_cpu=True)
    with pytest.raises(ValueError, match="decoder must be one of tiny, small, medium, got 'huge'"):
        Settings(decoder="huge")
    with pytest.raises(ValueError, match="holds no model that sharpmax clrs train has made"):
        trained_sizes(tmp_path)


def test_parts_of_a_batch_give_the_same_losses(small_set, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "ByLength", lambda *given: ByLength(*given[:3]))
    whole = train(small_set, tmp_path / "whole", TINY, on_cpu=True)
    parts = train(
        small_set, tmp_path / "parts", dataclasses.replace(TINY, accumulation=4), on_cpu=True
    )
    assert parts.loss == pytest.approx(whole.loss, rel=1e-4)


def test_fine_tuning_a_checkpoint_with_and_without_lora(small_set, tmp_path):
    train(small_set, tmp_path / "first", TINY, on_cpu=True)
    given = load_file(tmp_path / "first" / "model.safetensors")
    settings = dataclasses.replace(TINY, model=str(tmp_path / "first"))
    train(small_set, tmp_path / "all", settings, on_cpu=True)
    everything = load_file(tmp_path / "all" / "model.safetensors")
    assert everything.keys() == given.keys()
    assert all(not torch.equal(everything[name], given[name]) for name in given if "proj" in name)
    low_rank = dataclasses.replace(settings, lora=2)
    train(small_set, tmp_path / "lora", low_rank, on_cpu=True)
    changed = load_file(tmp_path / "lora" / "model.safetensors")
    assert changed.keys() == given.keys()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.linalg.matrix_rank(changed[name] - given[name], rtol=1e-3) <= 2
    assert torch.equal(changed["model.norm.weight"], given["model.norm.weight"])
    with pytest.raises(ValueError, match="context must be within that of .*, 8,192 tokens"):
        train(
            small_set,
            tmp_path / "long",
            dataclasses.replace(settings, context=9000),
            on_cpu=True,
        )
    with pytest.raises(ValueError, match="cannot be loaded as a model|there is no model"):
        train(
            small_set,
            tmp_path / "none",
            dataclasses.replace(TINY, model=str(tmp_path / "nowhere")),
            on_cpu=True,
        )


LONGER = dataclasses.replace(PRESETS["quick"].settings, batch=8, steps=40, save_every=10)


def command(small_set, out):
    """What trains with the same settings in another process."""
    return [
        *("-m", "sharpmax", "clrs", "train", small_set, "--out", out, "--device", "cpu"),
        *("--batch", "8", "--steps", "40", "--save-every", "10"),
    ]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(small_set, tmp_path):
    train(small_set, tmp_path / "whole", LONGER, on_cpu=True)
    killed = subprocess.Popen(
        [sys.executable, *command(small_set, tmp_path / "killed")],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    checkpoints = tmp_path / "killed" / "checkpoints"
    until = time.monotonic() + 240
    while not list(checkpoints.glob("checkpoint-*/trainer_state.json")):
        assert killed.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    # A checkpoint that was cut off while it was written is passed over.
    cut = checkpoints / "checkpoint-39"
    cut.mkdir()
    (cut / "trainer_state.json").write_text('{"global_step": 3')
    others = dataclasses.replace(LONGER, save_every=7)
    for _ in range(3):  # what is done stays so
        train(small_set, tmp_path / "killed", others, on_cpu=True)
        assert (checkpoints / "checkpoint-35").is_dir()
        assert losses(tmp_path / "killed") == [
            (step, pytest.approx(loss, rel=1e-4)) for step, loss in losses(tmp_path / "whole")
        ]
        found = load_file(tmp_path / "killed" / "model.safetensors")
        for name, weight in load_file(tmp_path / "whole" / "model.safetensors").items():
            torch.testing.assert_close(found[name], weight, atol=1e-4, rtol=1e-3)


def test_two_processes_do_what_one_does(small_set, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc_per_node", "2"]
    train(small_set, tmp_path / "one", LONGER, on_cpu=True)
    run = [*launch, *command(small_set, tmp_path / "two")]
    done = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("weights") == 1
    assert (tmp_path / "two" / "checkpoints" / "checkpoint-40" / "rng_state_1.pth").is_file()
    for (step, loss), (other_step, other_loss) in zip(
        losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True
    ):
        assert step == other_step
        assert other_loss == pytest.approx(loss, rel=1e-3)


def test_presets_train_within_sizes_that_the_test_goes_beyond():
    for preset in PRESETS.values():
        training, test = preset.recipe("train"), preset.recipe("val")
        assert training.sizes.keys() == test.sizes.keys()
        assert not {*training.seeds} & {*test.seeds}
        for recipe, most in ((training, preset.settings.context), (test, CONTEXT)):
            for name, sizes in recipe.sizes.items():
                sample = next(samples(name, max(sizes), seed=0, trace=False))
                assert len(sample.question + sample.answer) + 2 <= most, name
        for name, sizes in test.sizes.items():
            assert max(sizes) >= 2 * max(training.sizes[name])
            assert {*sizes} & {*training.sizes[name]}
