"""What a build did, as one HTML file to look at: ``minitvm view``, ``library.report.view()``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitvm.errors import InputError

if TYPE_CHECKING:
    from minitvm.driver.report import BuildReport
    from minitvm.lab.profiling import Profile


def write_page(
    report: BuildReport, path: str | os.PathLike[str], title: str = "", profile: Profile | None = None
) -> Path:
    """The report, and where given the profile of a run, as a self-contained page.

    :class:`ConfigError` where the build kept no modules, :class:`InputError` where the file cannot be written.
    """
    from minitvm.viewer.document import document_of
    from minitvm.viewer.page import page_of

    target = Path(path)
    return _written(page_of(document_of(report, title or target.stem, profile)), target)


def write_document(document: dict[str, Any], target: Path) -> Path:
    """A document as a page, or in a file ``.json`` by itself; errors as those of :func:`write_page`."""
    from minitvm.viewer.page import page_of

    return _written(json.dumps(document) if target.suffix == ".json" else page_of(document), target)


def _written(text: str, target: Path) -> Path:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"the page cannot be written to {target}: {error.strerror}", hint="-o FILE") from error
    return target
