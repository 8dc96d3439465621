"""The course's graders: every solution earns all points, wrong answers fail with the hint that fits."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import pathlib
import re
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from wrong_answers import WRONG

from minitvm.cli import cli
from minitvm.errors import InputError
from minitvm.lab.course import TITLES, chapter7, chapter_of, starting_code
from minitvm.lab.course.check import Outcome
from minitvm.lab.course.student import load
from minitvm.lab.grade import Grade, _Child, grade

ROOT = pathlib.Path(__file__).parent.parent.parent
SOLUTIONS = ROOT / "docs" / "course" / "solutions"


def outcomes(chapter: str, path: pathlib.Path, exercise: str | None = None) -> list[Outcome]:
    """Graded in this process; without the checks that time something."""
    work, problem = load(path)
    assert problem == ""
    found = chapter_of(chapter).exercises
    return [
        exercise_._outcome(check, work, str(path))
        for exercise_ in found
        if exercise in (None, exercise_.name)
        for check in exercise_.checks
        if "of what this core can do" not in check.title
    ]


@pytest.mark.parametrize("chapter", TITLES)
def test_a_solution_earns_all_points(chapter: str) -> None:
    found = outcomes(chapter, SOLUTIONS / f"{chapter}.py")
    assert [(o.check, o.message) for o in found if not o.passed] == []


@pytest.mark.parametrize("chapter", TITLES)
def test_starter_code_has_every_exercise_and_none_of_the_points(chapter: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(starting_code(chapter), encoding="utf-8")
    work, problem = load(path)
    assert problem == ""
    for exercise in chapter_of(chapter).exercises:
        first = exercise._outcome(exercise.checks[0], work, str(path))
        assert (first.passed, first.message) == (False, "not written yet"), exercise.name


@pytest.mark.parametrize(
    ("chapter", "exercise", "code", "hint"), WRONG, ids=[f"{w[1]}-{n}" for n, w in enumerate(WRONG)]
)
def test_a_wrong_answer_fails_with_a_hint(
    chapter: str, exercise: str, code: str, hint: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text((SOLUTIONS / f"{chapter}.py").read_text(encoding="utf-8") + "\n\n" + code, encoding="utf-8")
    failed = [o for o in outcomes(chapter, path, exercise) if not o.passed]
    assert failed, "full marks"
    assert any(hint in f"{o.message}\n{o.hint}" for o in failed), [f"{o.message}\n{o.hint}" for o in failed]


IN_OTHER_FORMS = [
    (
        "chapter2", "merge_scales",
        "@rule(call('multiply', call('multiply', value('x'), const('a'), single_use=True), const('b')),\n"
        "      exactness='reassociating', bound=Bound(3))\n"
        "def merge_scales(x, a, b):\n    return relay.multiply(relay.multiply(a, b), x)",
    ),
    (
        "chapter4", "fold_scale",
        "@rule(call('multiply', _CONV, const('c'), name='whole'), exactness='reassociating', bound=Bound(2, Of.SUMS))\n"
        "def fold_scale(x, w, c, conv, whole):\n"
        "    factors = c.value.reshape((1,) * (4 - c.value.ndim) + c.value.shape) if c.value.ndim <= 4 else c.value\n"
        "    if whole.type != conv.type or conv.op.layouts[0] != 'NCHW' and str(conv.op.layouts[0]) != 'NCHW':\n"
        "        return Declined('no')\n"
        "    if str(conv.op.layouts[1]) != 'OIHW' or factors.shape not in ((1,) * 4, (1, w.value.shape[0], 1, 1)):\n"
        "        return Declined('no')\n"
        "    return Call(conv.op, [x, relay.multiply(relay.const(factors.reshape(-1, 1, 1, 1)), w)])",
    ),
    (
        "chapter4", "scale_before_relu",
        "@rule(call('multiply', call('nn.relu', value('x'), single_use=True), const('c'), name='whole'))\n"
        "def scale_before_relu(x, c, whole):\n"
        "    right = whole.type == x.type and np.all((c.value > 0) & np.isfinite(c.value))\n"
        "    return relay.nn.relu(relay.multiply(c, x)) if right else Declined('no')",
    ),
    (
        "chapter5", "groups",
        "_first = groups\ndef groups(users, kinds):\n    return [frozenset(g) for g in reversed(_first(users, kinds))]",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("chapter", "exercise", "code"), IN_OTHER_FORMS, ids=[e for _, e, _ in IN_OTHER_FORMS])
def test_a_right_answer_in_another_form_loses_nothing(
    chapter: str, exercise: str, code: str, tmp_path: pathlib.Path
) -> None:
    """What is left to FoldConstant, operands in another order, sets of another kind."""
    path = tmp_path / "mine.py"
    path.write_text((SOLUTIONS / f"{chapter}.py").read_text(encoding="utf-8") + "\n\n" + code, encoding="utf-8")
    assert [(o.check, o.message) for o in outcomes(chapter, path, exercise) if not o.passed] == []


def test_every_node_alone_has_no_points(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def groups(users, kinds):\n    return [{n} for n in users]\n", encoding="utf-8")
    assert [o.check for o in outcomes("chapter5", path, "groups") if o.passed] == []


# --- what a process of its own is for -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """What does not answer in time is asked again, but where the file ``never_ends`` is there."""
    says = _Child.says

    def patient(child: _Child, seconds: float) -> Any:
        said = says(child, seconds)
        while said == "time" and not (tmp_path / "never_ends").exists():
            said = says(child, seconds)
        return said

    monkeypatch.setattr(_Child, "says", patient)


def graded(text: str, tmp_path: pathlib.Path, chapter: str = "chapter1") -> Grade:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    return grade(chapter, path)


def only(monkeypatch: pytest.MonkeyPatch, exercise: str, limit: float) -> None:
    """Chapter 1 with one exercise.  The child grades all of them from the number that it is given."""
    chapter = chapter_of("chapter1")
    monkeypatch.setattr(chapter, "exercises", [e for e in chapter.exercises if e.name == exercise])
    monkeypatch.setattr(chapter.exercises[0], "limit", limit)


def test_what_ends_the_process_or_never_ends_is_one_failed_check(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "residual_block", limit=0.1)
    text = """
import os, time
print("not a line of the protocol")
def residual_block(x, first, second):
    if os.path.exists("been_here"):
        open("never_ends", "w").close()
        while True:
            pass
    open("been_here", "w").close()
    os._exit(3)
"""
    monkeypatch.chdir(tmp_path)
    found = graded(text, tmp_path)
    said = [o.message for o in found.outcomes]
    assert said == ["your code ended the process (status 3)", "still running after 0.1 s"]
    assert "each node once is enough" in found.outcomes[1].hint
    assert found.earned == 0 and not found.complete


def test_a_syntax_error_is_shown_with_its_line(tmp_path: pathlib.Path) -> None:
    found = graded("def residual_block(x, first, second)\n    return x\n", tmp_path)
    assert found.outcomes == () and found.earned == 0
    assert "line 1" in str(found) and "expected ':'" in str(found) and "1.2 conv_shape: not checked" in str(found)


# --- the command line -----------------------------------------------------------------------------------------


def run(*arguments: Any) -> tuple[int, str]:
    try:
        found = CliRunner().invoke(cli, ["lab", *map(str, arguments)], catch_exceptions=False)
    except InputError as error:
        return 1, str(error)
    return found.exit_code, found.output


def test_the_commands_write_a_starter_and_grade_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("start") == (0, "".join(f"{name}  {title}\n" for name, title in TITLES.items()))
    assert run("start", "5")[0] == 0
    assert run("start", "chapter5") == (
        1, "chapter5.py is there already\n  = hint: --force writes over it, -o names another file"
    )  # fmt: skip
    status, output = run("grade", "5", "chapter5.py")
    assert status == 1 and output.startswith(
        "chapter5: Fusion as post-dominance\n\n5.1 post_dominators: 0 of 5 points\n"
    )
    assert output.endswith("\n0 of 15 points\n") and output.count("not written yet") == 3


def test_what_is_not_there_is_said() -> None:
    hint = "minitvm lab start chapter3 writes a file to begin with"
    assert run("grade", "chapter3", "none.py") == (1, f"there is no file none.py\n  = hint: {hint}")
    assert run("grade", "chapter9", "x.py")[1].startswith("there is no chapter 'chapter9'\n  = hint: did you mean")


def test_a_folder_of_submissions_and_the_forms_of_others(tmp_path: pathlib.Path) -> None:
    text = (SOLUTIONS / "chapter6.py").read_text(encoding="utf-8")
    (tmp_path / "ada.py").write_text(text, encoding="utf-8")
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob" / "answers.py").write_text("def place(layout, shape, index):\n    return 0\n", encoding="utf-8")
    status, output = run("grade", "6", tmp_path, "--csv", tmp_path / "points.csv")
    assert (status, output) == (1, "ada: 14 of 14 points\nbob: 0 of 14 points\n")
    lines = (tmp_path / "points.csv").read_text().splitlines()
    assert lines[0] == "student,chapter,earned,points,place,cancel_transforms,relu_first,blocked"
    assert lines[1:] == ["ada,chapter6,14,14,4,3,2,5", "bob,chapter6,0,14,0,0,0,0"]

    found = grade("chapter6", {"place": lambda layout, shape, index: 0})
    form, theirs = found.form(), found.gradescope()
    assert (form["earned"], form["points"], len(form["checks"])) == (0, 14, len(theirs["tests"]))
    assert theirs["score"] == 0 and sum(test["max_score"] for test in theirs["tests"]) == 14
    assert theirs["tests"][0]["status"] == "failed" and "hint: " in theirs["tests"][0]["output"]
    assert found.points_of("place") == 0

    (tmp_path / "bob" / "more.py").write_text("", encoding="utf-8")
    assert run("grade", "6", tmp_path)[1].startswith(f"{tmp_path / 'bob'} has 2 Python files")
    (tmp_path / "empty").mkdir()
    assert run("grade", "6", tmp_path / "empty")[1].startswith("there are no submissions in")


def test_a_notebook_grades_what_it_has_defined() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def conv_shape(data, weight, strides, padding, dilation):\n    return None", namespace)
    text = str(grade("chapter1", namespace))
    assert "does the function return on every way through it?" in text
    assert "there is no residual_block in the file" in text
    assert text.endswith("0 of 12 points")


def test_a_fast_product_is_held_against_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of some tries of both; the share itself is graded where a student asks, here a busy machine decides
    nothing."""
    work, _ = load(SOLUTIONS / "chapter7.py")
    assert chapter7.share_of_peak(chapter7.built(work["fast"]), tries=1) > 0

    flops = 2.0 * chapter7.ROWS * chapter7.SUMS * chapter7.COLUMNS
    peaks, reached = iter([100e9, 90e9, 80e9, 100e9, 100e9]), iter([40e9, 85e9, 60e9, 50e9, 99e9])
    machine: Any = SimpleNamespace(measured_flops=lambda tries: next(peaks))
    module: Any = SimpleNamespace(benchmark=lambda **_: SimpleNamespace(min=flops / next(reached)))
    monkeypatch.setattr(chapter7, "backend_of", lambda *_: machine)
    assert chapter7.share_of_peak(module, enough=0.8) == pytest.approx(0.85)
    assert next(peaks) == 100e9, "four tries, one of which has reached it"


# --- pages and notebooks --------------------------------------------------------------------------------------


def make() -> Any:
    spec = importlib.util.spec_from_file_location("course_make", ROOT / "docs" / "course" / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_chapter_has_a_page_that_shows_its_exercises() -> None:
    pages = {f"chapter{page.name[0]}": page.read_text(encoding="utf-8") for page in make().PAGES}
    assert list(pages) == list(TITLES)
    for name, text in pages.items():
        assert text.startswith(f"# {name.removeprefix('chapter')}. {chapter_of(name).title}\n")
        assert [e.name for e in chapter_of(name).exercises if f"`{e.name}" not in text] == []
        assert "solutions" not in text  # the exercises come first


def test_notebooks_are_the_pages() -> None:
    pytest.importorskip("nbformat")
    course = make()
    found = {p.name: p.read_text(encoding="utf-8") for p in course.NOTEBOOKS.glob("*.ipynb")}
    assert found == {f"{page.stem}.ipynb": course.notebook_of(page) for page in course.PAGES}, "make.py notebooks"


def test_a_notebook_has_a_kernel_cells_for_answers_and_leads_on() -> None:
    """Each exercise's starter stands behind its words, then a cell that grades; the next chapter is its notebook."""
    nbformat = pytest.importorskip("nbformat")
    course = make()
    for page, following in itertools.zip_longest(course.PAGES, course.PAGES[1:]):
        made = nbformat.read(course.NOTEBOOKS / f"{page.stem}.ipynb", as_version=4)
        nbformat.validate(made)
        assert made.metadata.kernelspec.name == "python3"
        cells, chapter = [cell.source for cell in made.cells], f"chapter{page.name[0]}"
        start = cells.index("## Exercises")
        graded = cells.index(f'from minitvm.lab.grade import grade\n\ngrade("{chapter}", globals())')
        answers = "\n\n\n".join(cell.source for cell in made.cells[start:graded] if cell.cell_type == "code")
        tree = ast.parse(starting_code(chapter))
        assert ast.dump(ast.parse(answers)) == ast.dump(ast.Module(tree.body[1:], []))
        if following is not None:
            assert f"]({following.stem}.ipynb)" in cells[-1]
        words = [cell.source for cell in made.cells if cell.cell_type == "markdown"]
        targets = [target for text in words for target in _links(text)]
        assert targets and [target for target in targets if not (course.NOTEBOOKS / target).exists()] == []


def _links(text: str) -> list[str]:
    return re.findall(r"\]\((?!https?:|#)([^)\s#]+)[^)]*\)", text)


def test_an_answer_in_a_notebooks_cell_earns_its_points() -> None:
    """The cells of a notebook in order, a solution in place of a starter: what the last cell says."""
    course = make()
    first, cells = course.starters("chapter6")
    space: dict[str, Any] = {"__name__": "__main__"}
    for code in (first, *cells.values(), (SOLUTIONS / "chapter6.py").read_text(encoding="utf-8")):
        exec(code, space)
    assert course.value_of('from minitvm.lab.grade import grade\n\ngrade("chapter6", globals())', "", space).complete


def test_a_notebook_prints_in_a_kernel_what_its_page_says() -> None:
    """All of them: ``python docs/course/make.py execute``."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    course = make()
    assert course.execute(course.NOTEBOOKS / "1-ir-and-types.ipynb") == []
