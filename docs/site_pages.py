"""What ``mkdocs`` is told beside ``mkdocs.yml``: pages that stand elsewhere in the repository, the API's reference, and
links to files that are no pages, which lead to the repository."""

from __future__ import annotations

import inspect
import pathlib
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository's root, by what they are on the site."""
OFFERING = ("minitvm", "minitvm.lab", "minitvm.ir.expr", "minitvm.ir.builder", "minitvm.passes", "minitvm.testing")
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<after>#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "api.md", content="\n".join(reference())))
    return files


def reference() -> Iterator[str]:
    """A section for each thing that a module offers, where it is defined; of operators :doc:`operators` is the page."""
    yield "# API\n\nWhat `dir(minitvm)` and modules below it show; operators have [their own page](operators.md).\n"
    told: set[str] = set()
    for module in OFFERING:
        yield f"\n## `{module}`\n"
        found = __import__(module, fromlist=["x"])
        for name in getattr(found, "__all__", dir(found)):
            one = getattr(found, name)
            home = f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', '')}"
            documented = inspect.isclass(one) or inspect.isfunction(one)
            if documented and home.startswith("minitvm.") and home not in told and "<" not in home:
                told.add(home)
                yield f"\n::: {home}\n    options: {{ heading_level: 3 }}\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as the site has them; code is left as it is."""
    source = next((here for here, there in ELSEWHERE.items() if there == page.file.src_uri), "")
    folder = posixpath.dirname(source or f"docs/{page.file.src_uri}")

    def led(found: re.Match[str]) -> str:
        return f"{found['before']}{_target(found['target'], folder, page, config, files)}{found['after'] or ''}"

    parts = _FENCE.split(markdown)
    return "".join(part if n % 2 else _LINK.sub(led, part) for n, part in enumerate(parts))


def _target(target: str, folder: str, page: Any, config: Any, files: Any) -> str:
    if "://" in target or page.file.src_uri == "api.md":
        return target
    path = posixpath.normpath(posixpath.join(folder, target))
    on_site = ELSEWHERE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
    if on_site and files.get_file_from_path(on_site) is not None and not _is_left_out(on_site, files):
        return posixpath.relpath(on_site, posixpath.dirname(page.file.src_uri) or ".")
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{config.repo_url}/{kind}/main/{path}"


def _is_left_out(path: str, files: Any) -> bool:
    return bool(files.get_file_from_path(path).inclusion.is_excluded())
