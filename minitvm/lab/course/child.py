"""The process that a student's file is graded in: ``python -m minitvm.lab.course.child chapter3 mine.py 0 0``.

Says one JSON object a line: first what is wrong with the file (or nothing), then each check's outcome, from the given
exercise's given check on.  What the student prints goes to standard error.
"""

import json
import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any, TextIO

from minitvm.lab.course import chapter_of
from minitvm.lab.course.check import explained


def load(path: Path) -> tuple[dict[str, Any], str]:
    """What a file defines, and what is wrong with it where it cannot be loaded."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules.setdefault(path.stem, module)  # dataclasses look there
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except SyntaxError as error:
        return {}, "".join(traceback.format_exception_only(error)).strip() + "\nhint: Python cannot read the file yet"
    except BaseException as error:
        message, hint = explained(error, str(path))
        return {}, f"the file cannot be loaded: {message}" + (f"\nhint: {hint}" if hint else "")
    return vars(module), ""


def main(chapter: str, file: str, exercise: str, check: str) -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # native code's too
    sys.stdout = sys.stderr
    work, problem = load(Path(file))
    _say(out, {"problem": problem})
    for number, found in enumerate(chapter_of(chapter).exercises[int(exercise) :]):
        if number == 0:
            found.checks = found.checks[int(check) :]
        for outcome in [] if problem else found.outcomes(work, file):
            _say(out, outcome.form())
    out.flush()
    os._exit(0)  # whatever threads the student left


def _say(out: TextIO, form: dict[str, Any]) -> None:
    print(json.dumps(form), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
