"""What ``pyproject.toml`` cannot say: a wheel has the text of the course, from ``docs/course``, beside its graders."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = Path("docs/course")
PAGES = ("*.md", "pictures/*.svg")


class WithCourse(build_py):
    """Copies pages and pictures, but no solutions, into a build; an editable installation reads the clone's."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source in (found for pattern in PAGES for found in SOURCE.glob(pattern)):
                target = Path(self.build_lib) / "minitvm" / "lab" / "course" / "pages" / source.relative_to(SOURCE)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


if __name__ == "__main__":
    setup(cmdclass={"build_py": WithCourse})
