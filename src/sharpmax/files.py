"""Files that are there when they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a path to write to, whose file takes the place of `path` in the end, or never.

    Each process writes to one of its own, so that two may write the same file.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        yield fresh
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
