"""Several processes take the step of one."""

import os

import torch
from tiny_fit import SETTINGS, TEXT, fitting_of
from tiny_models import letters, tiny

from sharpmax.hf.calibrate import Examples
from sharpmax.hf.calibrate.processes import Processes


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(os.path.join(folder, "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = tiny("llama", max_position_embeddings=512)
    fitting = fitting_of(model, Examples(letters(), SETTINGS, TEXT), processes=Processes.here())
    fitting.weigh()
    fitting.step(fitting.examples.batch(1), 2.0)
    gradients = {name: value.grad for name, value in fitting.numbers.items()}
    torch.save(gradients, os.path.join(folder, f"{rank}.pt"))
    torch.distributed.destroy_process_group()


def test_two_processes_take_the_step_of_one(model, examples, tmp_path):
    torch.multiprocessing.spawn(_work, (str(tmp_path),), nprocs=2)
    fitting = fitting_of(model, examples)
    fitting.weigh()
    fitting.step(examples.batch(1), 2.0)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, value in fitting.numbers.items():
            torch.testing.assert_close(found[name], value.grad, rtol=1e-3, atol=1e-5)
