"""Every check in one command: ``python check.py`` (lint, format, types, English, workflows, tests).  Any argument
goes to pytest."""

import importlib.util
import pathlib
import subprocess
import sys

WORKFLOWS = tuple(f".github/workflows/{name}.yml" for name in ("test", "more"))
CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("tests.prose",),
    ("check_jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS),
    ("zizmor", "--offline", "--no-progress", *WORKFLOWS),
    ("pytest", *sys.argv[1:]),
)


def command(tool: str, *arguments: str) -> list[str]:
    """A tool of this environment: a module, or a program beside Python."""
    if importlib.util.find_spec(tool) is not None:
        return [sys.executable, "-m", tool, *arguments]
    return [str(pathlib.Path(sys.executable).with_name(tool)), *arguments]


def main() -> int:
    for check in CHECKS:
        print("+", *check, flush=True)
        status = subprocess.run(command(*check)).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
