"""``minitvm lab start``, ``read`` and ``grade``: the course, its text and its exercises."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minitvm.cli import common
from minitvm.cli.options import PATH, as_json, command, option
from minitvm.errors import InputError

if TYPE_CHECKING:
    from minitvm.lab.grade import Grade


@command()
@click.argument("chapter", required=False)
@option("-o", "--output", type=PATH, needs="CHAPTER", help="The file to write; CHAPTER.py without.")
@option("--force", is_flag=True, needs="CHAPTER", help="Write over a file that is there.")
def start(chapter: str | None, output: Path | None, force: bool) -> None:
    """Write the starter code of a CHAPTER of the course; without one, list the chapters."""
    from minitvm.lab.course import TITLES, chapter_of, starting_code

    if chapter is None:
        for name, title in TITLES.items():
            click.echo(f"{name}  {title}")
        return
    path = common.output(output or Path(f"{chapter_of(chapter).name}.py"))
    if path.exists() and not force:
        raise InputError(f"{path} is there already", hint="--force writes over it, -o names another file")
    path.write_text(starting_code(chapter), encoding="utf-8")
    click.echo(f"{path}: write your answers there, then: minitvm lab grade {chapter_of(chapter).name} {path}")


@command()
@click.argument("chapter", default="")
@option("--browser", is_flag=True, help="Show it in a browser, with its pictures.")
@option("-o", "--output", type=PATH, help="Folder to write the whole course to, as pages for a browser.")
def read(chapter: str, browser: bool, output: Path | None) -> None:
    """Read a CHAPTER of the course; without one, what the course is about.

    \b
    Examples:
      minitvm lab read chapter1
      minitvm lab read chapter5 --browser
    """
    from rich.markdown import Markdown

    from minitvm.lab.course.reading import html_name, page_of, write_html

    page = page_of(chapter)
    if not (browser or output):
        with common.stdout.pager(styles=True) if common.stdout.is_terminal else contextlib.nullcontext():
            common.stdout.print(Markdown(page.read_text(encoding="utf-8")), width=min(common.stdout.width, 110))
        return
    common.output_folder(output)
    place = output or Path(tempfile.mkdtemp(prefix="minitvm-course-"))
    write_html(place)
    common.say(f"{place / html_name(page)}: {page.name.partition('.')[0] if chapter else 'the course'}")
    if browser:
        webbrowser.open((place / html_name(page)).resolve().as_uri())


@command()
@click.argument("chapter")
@click.argument("file", type=PATH)
@as_json
@option("--gradescope", type=PATH, help="Write Gradescope's results.json to this file.")
@option("--csv", "csv_path", type=PATH, help="Write points by student and exercise to this file.")
def grade(chapter: str, file: Path, as_json: bool, gradescope: Path | None, csv_path: Path | None) -> None:
    """Grade FILE as the answers to a CHAPTER's exercises: points, and a hint for each check that fails. FILE may be a
    folder of submissions: ada.py, or ada/answers.py.

    Exit status 0 where all points are earned, else 1.

    \b
    Examples:
      minitvm lab grade chapter3 mine.py
      minitvm lab grade chapter3 submissions --csv points.csv
      minitvm lab grade chapter3 /autograder/submission/mine.py --gradescope /autograder/results/results.json
    """
    from minitvm.lab.grade import grade as graded
    from minitvm.lab.grade import submissions

    for path in filter(None, (gradescope, csv_path)):
        common.output(path, file)
    if gradescope is not None and file.is_dir():
        raise InputError(f"{file} is a folder", hint="Gradescope grades one submission at a time")
    found = {name: graded(chapter, one) for name, one in _students(file, submissions).items()}
    if as_json:
        forms = {name: one.form() for name, one in found.items()}
        common.say_json({"chapter": chapter, "grades": forms}, file, all(one.complete for one in found.values()))
    for name, one in found.items() if not as_json else ():
        click.echo(f"{name}: {one.earned} of {one.points} points" if file.is_dir() else str(one))
    if gradescope is not None:
        gradescope.write_text(json.dumps(found[file.stem].gradescope(), indent=1), encoding="utf-8")
    if csv_path is not None:
        csv_path.write_text(_table(found), encoding="utf-8")
    sys.exit(0 if all(one.complete for one in found.values()) else 1)


def _students(file: Path, submissions: Callable[[Path], dict[str, Path]]) -> dict[str, Path]:
    return submissions(file) if file.is_dir() else {file.stem: file}


def _table(found: Mapping[str, Grade]) -> str:
    exercises = [e.name for e in next(iter(found.values())).chapter.exercises]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", "chapter", "earned", "points", *exercises])
    for name, one in found.items():
        writer.writerow([name, one.chapter.name, one.earned, one.points, *map(one.points_of, exercises)])
    return text.getvalue()
