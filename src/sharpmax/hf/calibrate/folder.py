"""The folder of a calibration: what a run that was stopped goes on from, and what it leaves."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

import sharpmax
from sharpmax.files import written_whole
from sharpmax.hf.calibrate.points import Calibration, Point
from sharpmax.hf.sharpen import layers_and_heads
from sharpmax.hf.table import write_csv
from sharpmax.policy import POLICY_FILE, Policy

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from sharpmax.hf.calibrate.examples import Examples
    from sharpmax.hf.calibrate.processes import Processes
    from sharpmax.hf.calibrate.study import Study

STATE, TENSORS, POINTS = "state.json", "state.safetensors", "points.csv"
WHAT = {
    "model": "model",
    "layers": "layers",
    "heads": "heads",
    "weights": "weights or dtype",
    "data": "texts or questions",
    "start": "start",
}
"""What a folder's calibration must have in common with one that goes on from it, and its words."""
ANY_WAY = {"at_once", "checkpointing"}
"""Settings with which steps are the same."""


class Folder:
    """Where a calibration keeps what it has found after every stage; nowhere if there is none."""

    def __init__(
        self,
        path: str | Path | None,
        model: PreTrainedModel,
        name: str,
        examples: Examples,
        processes: Processes,
        start: Policy | None = None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self._writes = processes.is_first
        layers, heads = layers_and_heads(model)
        self._about: dict[str, Any] = {
            "model": name,
            "layers": layers,
            "heads": heads,
            "settings": json.loads(json.dumps(asdict(examples.settings))),
            "data": examples.digest,
            "weights": _fingerprint(model),
        }
        if start is not None:
            told = json.dumps(start.to_dict(), sort_keys=True)
            self._about["start"] = hashlib.sha256(told.encode()).hexdigest()
        self._found = processes.first(self._read() if self._writes else None)
        if self._found is not None:
            self._require_ours(self._found[0])

    def _require_ours(self, saved: Any) -> None:
        """Raise a ValueError unless what was found is whole, and of this very calibration."""
        if "damaged" in saved:
            raise self._damaged(saved["damaged"])
        theirs, ours = saved["about"], self._about
        differ = [name for name in WHAT if theirs.get(name) != ours.get(name)]
        names = {**theirs["settings"], **ours["settings"]}.keys() - ANY_WAY
        settings = [n for n in names if theirs["settings"].get(n) != ours["settings"].get(n)]
        if differ or settings:
            told = [WHAT[name] for name in differ] + sorted(settings)
            raise ValueError(
                f"{self.path} holds another calibration, with other {', '.join(told)}: choose "
                "another folder"
            )

    def _damaged(self, reason: object) -> ValueError:
        return ValueError(
            f"{self.path} holds a state that cannot be read ({reason}): remove {STATE} and "
            f"{TENSORS} from it to begin anew"
        )

    def resume(self, study: Study) -> None:
        """Take up what was found before."""
        if self._found is None:
            return
        saved, tensors = self._found
        shapes = {name: value.shape for name, value in study.fitting.numbers.items()}
        for name in saved["policies"]:
            for number, shape in shapes.items():
                found = tensors.get(f"{name}::numbers/{number}")
                if found is None or found.shape != shape:
                    raise self._damaged(f"{number} of {name} has another shape, or is not there")
        study.points = [Point(**point) for point in saved["points"]]
        study.policies = {n: Policy.from_dict(data) for n, data in saved["policies"].items()}
        study.step, study.tie = int(saved["step"]), float(saved["tie"])
        for name, tensor in tensors.items():
            stage, _, key = name.partition("::")
            study.states.setdefault(stage, {})[key] = tensor

    def _read(self) -> tuple[Any, dict[str, Tensor]] | None:
        """Return what lies in the folder, as far as it can be read."""
        if self.path is None or not (self.path / STATE).is_file():
            return None
        try:
            saved = json.loads((self.path / STATE).read_text(encoding="utf-8"))
            points = [Point(**point).name for point in saved["points"]]
            policies = [Policy.from_dict(data) and name for name, data in saved["policies"].items()]
            if points != policies:
                raise ValueError(f"points {points}, policies {policies}")
            if not isinstance(saved["about"]["settings"], dict):
                raise ValueError("no settings")
            int(saved["step"]), float(saved["tie"])
            return saved, load_file(self.path / TENSORS)
        except Exception as error:  # whatever lies in a file that was damaged
            return {"damaged": f"{type(error).__name__}: {error}"}, {}

    def keep(self, study: Study) -> None:
        """Write everything that was found so far; the old is replaced when the new is whole."""
        if self.path is None or not self._writes:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{stage}::{name}": tensor.contiguous()
            for stage, state in study.states.items()
            for name, tensor in state.items()
        }
        with written_whole(self.path / TENSORS) as fresh:
            save_file(tensors, fresh)
        saved = {
            "about": self._about,
            "step": study.step,
            "tie": study.tie,
            "points": [asdict(point) for point in study.points],
            "policies": {name: policy.to_dict() for name, policy in study.policies.items()},
        }
        with written_whole(self.path / STATE) as fresh:
            fresh.write_text(json.dumps(saved), encoding="utf-8")
        write_csv(self.path / POINTS, Point, study.points)

    def finish(self, found: Calibration) -> None:
        """Write every point's policy, and the one that is kept as the folder's own."""
        if self.path is None or not self._writes:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        for point in found.points:
            about = self._about_point(found, point)
            found.policies[point.name].save(self.path / f"{file_name(point.name)}.json", about)
        if found.kept is not None:
            about = self._about_point(found, found.kept)
            found.policies[found.kept.name].save(self.path / POLICY_FILE, about)

    def _about_point(self, found: Calibration, point: Point) -> dict[str, Any]:
        versions = {"sharpmax": sharpmax.__version__, "torch": torch.__version__}
        figures = {"plain": asdict(found.plain), "point": asdict(point)}
        return {**self._about, "figures": figures, "versions": versions}


def _fingerprint(model: PreTrainedModel) -> str:
    """Return what tells models of one shape apart: their dtype, and a few of all their numbers."""
    digest = hashlib.sha256(str(model.dtype).encode())
    for weight in model.parameters():
        some = weight.detach().flatten()[:: max(1, weight.numel() // 16)]
        digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def file_name(point: str) -> str:
    """Return what a point's policy is called as a file."""
    return point.replace(" ", "-").removesuffix("%")
