"""What grades the course of docs/course: one module a chapter, and the starter code that a student begins with."""

import importlib
from pathlib import Path

from minitvm.errors import InputError, did_you_mean
from minitvm.lab.course.check import Chapter

TITLES = {
    "chapter1": "IR and types",
    "chapter2": "The first rewrite",
    "chapter3": "A pass and its proof",
    "chapter4": "Constant folding and scale folding",
    "chapter5": "Fusion as post-dominance",
    "chapter6": "Layout",
    "chapter7": "Loops and schedules up to 80 % of peak",
    "chapter8": "Code for CPU and GPU, the executor",
}
"""The chapters by name."""


def chapter_of(name: str) -> Chapter:
    """A chapter with its exercises; ``3`` and ``chapter3`` are the same one."""
    full = name if name.startswith("chapter") else f"chapter{name}"
    if full not in TITLES:
        raise InputError(f"there is no chapter {name!r}", hint=did_you_mean(full, TITLES, str))
    chapter: Chapter = importlib.import_module(f"minitvm.lab.course.{full}").CHAPTER
    return chapter


def starting_code(name: str) -> str:
    """The code that a chapter begins with."""
    path = Path(__file__).parent / "starter" / f"{chapter_of(name).name}.py"
    return path.read_text(encoding="utf-8")
