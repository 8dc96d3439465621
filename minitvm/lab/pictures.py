"""Pictures of figures, for which matplotlib is needed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from minitvm.errors import ConfigError


def kind_of(path: str | os.PathLike[str]) -> str:
    """The kind of picture that a name asks for, png by default; :class:`ConfigError` where there is none, or no
    matplotlib: before what takes long."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("pictures need matplotlib, which is not installed", hint="pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    kind = Path(path).suffix[1:] or "png"
    if kind not in FigureCanvasBase.get_supported_filetypes():
        raise ConfigError(f"{path}: there is no kind of picture {kind!r}", hint="name it .png, .svg or .pdf")
    return kind


def bars(
    path: str | os.PathLike[str], title: str, names: Sequence[str], figures: Mapping[str, Sequence[float]]
) -> None:
    """Horizontal bars, one for each name, beside each other for each unit; into a file of the kind that its name says.

    :class:`ConfigError` without matplotlib, and for a file that it cannot write.
    """
    kind = kind_of(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 + 3.2 * len(figures), 1.2 + 0.32 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    panes = figure.subplots(1, len(figures), sharey=True, squeeze=False)[0]
    for pane, (unit, values) in zip(panes, figures.items(), strict=True):
        pane.barh(range(len(names)), values, color="#4878a8")
        pane.bar_label(pane.containers[0], fmt="%.3g", padding=2, fontsize=8)
        pane.set_yticks(range(len(names)), names, fontsize=8)
        pane.set_xlabel(unit)
        pane.margins(x=0.15)
        pane.spines[["top", "right"]].set_visible(False)
    panes[0].invert_yaxis()
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=130, format=kind)
    except OSError as error:
        raise ConfigError(f"the picture cannot be written: {error}") from None
