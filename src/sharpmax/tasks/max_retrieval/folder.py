"""The folder of a run: settings, checkpoints, tables. Whatever is in it is whole.

A file is written beside its place and moved there when it is complete, so that a run that is
killed, or a disk that is full, leaves the last good one.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from sharpmax.tasks.max_retrieval.settings import Settings, read_toml, settings_from

if TYPE_CHECKING:
    from torch import Tensor

Row = Mapping[str, Any]


class RunFolder:
    """A folder that belongs to one study."""

    def __init__(self, path: Path, settings: Settings, device: str) -> None:
        """Make the folder, or take the one that is there if it holds the same study.

        Raises:
            ValueError: If the folder holds another study, or something else.
        """
        self.path = path
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file: name a folder with --out")
        held = path / "settings.toml"
        if held.exists():
            self._require_same(held, settings, device)
            return
        begun = (".", "device.json")  # all that a run can leave that was stopped before it began
        if path.exists() and not all(file.name.startswith(begun) for file in path.iterdir()):
            raise ValueError(f"{path} holds something else than a run: name another with --out")
        path.mkdir(parents=True, exist_ok=True)
        self.write("device.json", json.dumps(device).encode())
        self.write("settings.toml", settings.to_toml().encode())

    def _require_same(self, held: Path, settings: Settings, device: str) -> None:
        old = settings_from("paper", read_toml(held))
        if old != settings:
            changed = next(
                name for name in vars(settings) if getattr(old, name) != getattr(settings, name)
            )
            raise ValueError(
                f"{self.path} holds a run with {changed} = {getattr(old, changed)}, not "
                f"{getattr(settings, changed)}: name another folder with --out"
            )
        old_device = self.read_json("device.json")
        if old_device not in (None, device) and not self.has("weights.safetensors"):
            raise ValueError(
                f"{self.path} was begun on {old_device} and cannot go on on {device}: add "
                f"--device {old_device}, or name another folder with --out"
            )

    def has(self, name: str) -> bool:
        """Tell whether a file is there."""
        return (self.path / name).exists()

    def write(self, name: str, content: bytes) -> None:
        """Put a file in its place, whole or not at all."""
        place = self.path / name
        place.parent.mkdir(exist_ok=True)
        beside = place.with_name(f".{place.name}.part")
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(place)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors into a safetensors file."""
        whole = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        self.write(name, save(whole))

    def read_tensors(self, name: str) -> dict[str, Tensor] | None:
        """Return the tensors of a file, or None where there is none.

        Raises:
            ValueError: If the file is damaged. It is set aside, so that the next run can begin.
        """
        place = self.path / name
        if not place.exists():
            return None
        try:
            return load(place.read_bytes())
        except SafetensorError as error:
            raise self.set_aside(name, str(error)) from None

    def write_table(self, name: str, rows: Sequence[Row]) -> None:
        """Put rows into a CSV file; None is an empty cell."""
        text = io.StringIO(newline="")
        if rows:
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        self.write(name, text.getvalue().encode())

    def read_table(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a CSV file, numbers as numbers; none where there is no file."""
        place = self.path / name
        if not place.exists():
            return []
        with place.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            return [{key: _value(key, text) for key, text in row.items()} for row in rows]

    def write_json(self, name: str, value: Any) -> None:
        """Put a value into a JSON file."""
        self.write(name, json.dumps(value, indent=1).encode())

    def read_json(self, name: str) -> Any:
        """Return the value of a JSON file, or None where there is none.

        Raises:
            ValueError: If the file is damaged. It is set aside.
        """
        place = self.path / name
        if not place.exists():
            return None
        try:
            return json.loads(place.read_text(encoding="utf-8"))
        except ValueError as error:
            raise self.set_aside(name, str(error)) from None

    def remove(self, name: str) -> None:
        """Remove a file that is not needed any more."""
        (self.path / name).unlink(missing_ok=True)

    def set_aside(self, name: str, reason: str) -> ValueError:
        """Move a damaged file out of the way and return the error that says so."""
        place = self.path / name
        aside = place.with_name(f"{name}.damaged")
        place.replace(aside)
        return ValueError(
            f"{place} is damaged ({reason}) and was set aside as {aside.name}: run the same "
            "command again to make what it held anew; all else is kept"
        )


def _value(key: str, text: str) -> Any:
    """Return a cell's value: text for names, and else a number, a truth value or nothing."""
    if key == "policy":
        return text
    if text in ("True", "False"):
        return text == "True"
    if not text:
        return None
    number = float(text)
    return int(number) if text.lstrip("-").isdigit() else number
