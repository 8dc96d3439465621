"""``minitvm lab start`` and ``minitvm lab grade``: the course's exercises."""

import sys
from pathlib import Path

import click

from minitvm.cli.options import PATH, command, option
from minitvm.errors import InputError


@command()
@click.argument("chapter", required=False)
@option("-o", "--output", type=PATH, needs="CHAPTER", help="The file to write; CHAPTER.py without.")
@option("--force", is_flag=True, needs="CHAPTER", help="Write over a file that is there.")
def start(chapter: str | None, output: Path | None, force: bool) -> None:
    """Write the starter code of a CHAPTER of the course; without one, list the chapters."""
    from minitvm.cli import common
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
@click.argument("chapter")
@click.argument("file", type=PATH)
def grade(chapter: str, file: Path) -> None:
    """Grade FILE as the answers to a CHAPTER's exercises: points, and a hint for each check that fails.

    Exit status 0 where all points are earned, else 1.
    """
    from minitvm.lab.grade import grade as graded

    found = graded(chapter, file)
    click.echo(str(found))
    sys.exit(0 if found.complete else 1)
