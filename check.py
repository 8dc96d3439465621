"""Every check in one command: ``python check.py`` (lint, format, types, tests).  Any argument goes to pytest."""

import subprocess
import sys

CHECKS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",), ("pytest", *sys.argv[1:]))


def main() -> int:
    for tool, *arguments in CHECKS:
        print("+", tool, *arguments, flush=True)
        status = subprocess.run([sys.executable, "-m", tool, *arguments]).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
