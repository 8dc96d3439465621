"""TVM's ``contrib.utils``: folders that go away by themselves."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


class TempDirectory:
    """A folder that is deleted with the object, or by :meth:`remove`."""

    def __init__(self, custom_path: str | Path | None = None, keep_for_debug: bool = False) -> None:
        """``custom_path`` is a folder to use, which is made; ``keep_for_debug`` leaves it there."""
        self.path = Path(custom_path or tempfile.mkdtemp(prefix="minitvm-"))
        self.path.mkdir(parents=True, exist_ok=True)
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        if keep_for_debug:
            self._remove.detach()

    @property
    def temp_dir(self) -> str:
        return str(self.path)

    def relpath(self, name: str) -> str:
        """The path of a file in it."""
        return str(self.path / name)

    def listdir(self) -> list[str]:
        """Names of what is in it, sorted."""
        return sorted(path.name for path in self.path.iterdir())

    def remove(self) -> None:
        """Deletes it now."""
        self._remove()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __enter__(self) -> TempDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def tempdir(custom_path: str | Path | None = None, keep_for_debug: bool = False) -> TempDirectory:
    """A new temporary folder."""
    return TempDirectory(custom_path, keep_for_debug)
