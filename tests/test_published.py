"""What goes out: what texts promise before there is a release, what the package says of itself, what a source
distribution holds."""

from __future__ import annotations

import fnmatch
import pathlib
import re
import subprocess

import pytest

import minitvm

ROOT = pathlib.Path(minitvm.__file__).parents[1]
FROM_INDEX = re.compile(r"pip3? install(?: +-[-\w]+)* +['\"]?minitvm(?!-\d)\b")
"""A name that an index would have to know; a wheel's file is none."""
TEXTS = (".py", ".md", ".toml", ".yml", ".ipynb", ".cff", ".js", ".html")


def tracked() -> list[str]:
    """The repository's files; of a source distribution, which is no repository, those that are there."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in found.stdout.splitlines() if (ROOT / name).exists()]


def settings() -> dict[str, dict[str, object]]:
    tomllib = pytest.importorskip("tomllib")
    found: dict[str, dict[str, object]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return found


def test_no_text_says_to_install_what_is_not_released() -> None:
    own = ("tests/test_published.py", "docs/release.md")
    texts = [name for name in tracked() if name.endswith(TEXTS) and name not in own]
    wrong = [
        f"{name}: {line.strip()}"
        for name in texts
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if FROM_INDEX.search(line)
    ]
    assert len(texts) > 500 and not wrong


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("pip install minitvm", True),
        ("pip install -U 'minitvm[cuda]'", True),
        ('pip install --quiet "minitvm"', True),
        ("pip install '.[test]'", False),
        ("pip install minitvm-0.1.0-py3-none-any.whl", False),
        ("pip install cuda-bindings nvidia-cuda-nvrtc", False),
    ],
)
def test_such_a_text_is_seen(text: str, is_one: bool) -> None:
    assert bool(FROM_INDEX.search(text)) is is_one


def test_the_package_says_who_it_is() -> None:
    project = settings()["project"]
    for key in ("description", "readme", "license", "authors", "keywords", "classifiers", "urls", "requires-python"):
        assert project[key], key
    urls = project["urls"]
    assert isinstance(urls, dict) and set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {project['version']}\n" in cited and f'"{urls["Repository"]}"' in cited
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[.*{re.escape(str(project['version']))}", changes, re.MULTILINE)


def test_the_workflow_runs_what_is_promised() -> None:
    """Every Python that the classifiers name, three systems, both kinds of machine, and the README's commands."""
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    classifiers = settings()["project"]["classifiers"]
    assert isinstance(classifiers, list)
    for version in re.findall(r"Python :: (3\.\d+)'", str(classifiers)):
        assert f'"{version}"' in text
    assert all(f"{system}-" in text for system in ("ubuntu", "macos", "windows")) and "24.04-arm" in text
    assert '-m "not slow"' in text and "- run: .ci/run" in text
    assert "-m more --more" in (ROOT / ".github" / "workflows" / "more.yml").read_text(encoding="utf-8")


def manifest() -> tuple[list[str], list[str]]:
    """Patterns of files that a source distribution takes, and of those that it leaves out."""
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    taken = [pattern for first, *rest in words if first == "include" for pattern in rest]
    taken += [f"{folder}/*" for first, *rest in words if first == "graft" for folder in rest]
    return taken, [pattern for first, *rest in words if first == "global-exclude" for pattern in rest]


def test_a_source_distribution_is_whole() -> None:
    """All that is in the repository, but for what is of git and of the place where it is kept."""
    taken, left = manifest()
    always = ("README.md", "LICENSE", "pyproject.toml", "MANIFEST.in")
    lost = [
        name
        for name in tracked()
        if not name.startswith((".git", ".github/"))
        and name not in always
        and (
            not any(fnmatch.fnmatch(name, p) and ("/" in p or "/" not in name) for p in taken)
            or any(fnmatch.fnmatch(name.rpartition("/")[2], p) for p in left)
        )
    ]
    assert not lost


def test_setuptools_makes_one(tmp_path: pathlib.Path) -> None:
    """What really comes out, where a setuptools is installed that is new enough to make it."""
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.partition(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} is too old to build the package")
    import shutil
    import sys
    import tarfile

    copy = tmp_path / "copy"
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    code = f"import setuptools.build_meta as b; print(b.build_sdist({str(tmp_path)!r}))"
    made = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=True)
    with tarfile.open(tmp_path / made.stdout.splitlines()[-1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked() if not name.startswith(".git")} - held == set()


FIGURES = {
    r"\*\*([\d.]+) x as fast\*\*": (
        "benchmark.md",
        r"^geometric mean of the 18, 1 thread, steady .*? ([\d.]+) +[\d.]+$",
    ),
    r"each of them at least ([\d.]+) x": (
        "benchmark.md",
        r"^every network against the faster peer, 1 thread .*? ([\d.]+) +[\d.]+$",
    ),
    r"\*\*([\d,]+) of [\d,]+\*\* of ONNX": ("coverage.md", r"^\*\*([\d,]+) pass"),
    r" of ([\d,]+)\*\* of ONNX": ("coverage.md", r"^All ([\d,]+) backend tests"),
    r"ONNX Runtime passes ([\d,]+)": ("coverage.md", r"^\| ONNX Runtime [\d.]+ \| ([\d,]+) \|"),
    r"\*\*(\d+ of \d+)\*\* mistakes": ("check.md", r"^(\d+ of \d+) are found"),
}
"""What the README's first screen says, and where it is from."""


@pytest.mark.parametrize("said", FIGURES)
def test_the_readmes_figures_are_those_of_their_pages(said: str) -> None:
    page, pattern = FIGURES[said]
    (here,) = re.findall(said, (ROOT / "README.md").read_text(encoding="utf-8"))
    there = re.search(pattern, (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert there and here == there[1]


def test_the_readmes_first_screen() -> None:
    """What it is, a picture, three figures and the two commands, before all else."""
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Read it")[0]
    assert "](docs/pictures/" in first and first.count("| **") == 3 and first.count("```bash") == 3
    assert (
        first.index("docs/pictures") < first.index("| **") < first.index("bin/minitvm demo") < first.index("-m pytest")
    )
