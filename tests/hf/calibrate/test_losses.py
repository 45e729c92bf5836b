"""What answers and texts cost."""

import torch
from tiny_models import tiny
from torch.nn.functional import cross_entropy

from sharpmax import LogLinear
from sharpmax.hf import sharpen
from sharpmax.hf.calibrate.losses import Q, answer_logits, answer_losses, are_right, shortfall
from sharpmax.hf.reader import Reader


def test_answers_out_of_reach_pull_least():
    losses = torch.tensor([0.0, 0.5, 4.0, 40.0], requires_grad=True)
    pulls = torch.autograd.grad(shortfall(losses).sum(), losses)[0]
    torch.testing.assert_close(pulls, torch.exp(-Q * losses.detach()))
    short = shortfall(losses).tolist()
    assert short[0] == 0
    assert short == sorted(short)
    assert short[-1] <= 1 / Q


def test_questions_read_together_are_answered_as_each_by_itself(examples):
    model = tiny("llama", max_position_embeddings=512).double()
    reader, groups = Reader(model), examples.batch(1).prompts
    assert reader.can_branch
    with torch.no_grad(), sharpen(model, LogLinear(32, 0.3, 0.2)):
        prompts = [prompt for some in groups for prompt in some]
        together = answer_logits(reader, groups)
        losses, right = answer_losses(together, prompts), are_right(together, prompts)
        found = together.split([len(prompt.answer) for prompt in prompts])
        for i, (prompt, logits) in enumerate(zip(prompts, found, strict=True)):
            torch.testing.assert_close(logits, answer_logits(reader, [[prompt]]))
            whole = model(torch.tensor([[*prompt.tokens, *prompt.answer]])).logits[0]
            wanted = whole[len(prompt.tokens) - 1 : -1]
            torch.testing.assert_close(logits, wanted.to(logits), rtol=1e-5, atol=1e-6)
            loss = cross_entropy(wanted, torch.tensor(prompt.answer))
            torch.testing.assert_close(losses[i], loss.to(losses), rtol=1e-5, atol=1e-6)
            assert right[i] == (wanted.argmax(-1).tolist() == prompt.answer)
