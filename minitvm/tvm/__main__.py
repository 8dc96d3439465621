"""``python -m minitvm.tvm script.py [arguments]``: runs a script whose ``import tvm`` is answered by minitvm, with
Relay's text for modules."""

import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from minitvm.tvm.paths import same_module
from minitvm.tvm.relay.text import install


class TVM:
    """Finds ``tvm`` and what lies in it: ``tvm.PATH`` is the module ``minitvm.tvm.PATH``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, _ = fullname.partition(".")
        if package != "tvm":
            return None
        home = f"minitvm.{fullname}"
        return ModuleSpec(fullname, same_module(home)) if find_spec(home) is not None else None


def main(arguments: Sequence[str]) -> None:
    """Runs the script that the first argument names, the others being its own."""
    if not arguments or not Path(arguments[0]).is_file():
        missing = f"{arguments[0]} is no file" if arguments else "no script is named"
        sys.exit(f"error: {missing}\nhint: python -m minitvm.tvm script.py [arguments]")
    finder: Any = TVM()
    sys.meta_path.insert(0, finder)
    sys.argv = list(arguments)
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    install()
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
