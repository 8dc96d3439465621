"""What a user chooses for single kernels in place of what templates and records would: a template, one of its ways, a
schedule.

with override("fused_nn_conv2d*", template="conv_blocked.ConvBlocked", config="direct, tiles of 6 x 2 vectors"):
    library = minitvm.compile("model.onnx")
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from minitvm.codegen.problem import OVERRIDES, Choice, Template
from minitvm.codegen.records import Record, key_of, trying
from minitvm.codegen.schedule import Schedule
from minitvm.errors import ConfigError, listing
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Function
from minitvm.ir.loop import Kernel
from minitvm.ir.visitor import calls, span_of
from minitvm.passes.context import closest

Config = str | Mapping[str, Any]
"""A way of a template as it is printed, or some of ``scheme``, ``rows``, ``blocks``."""


@dataclass(frozen=True)
class Override:
    """A choice for the kernels that ``kernel`` matches, by name or by that of an ONNX node (``*`` stands for
    anything)."""

    kernel: str
    template: str | None = None
    config: Config | None = None
    schedule: Schedule | None = None
    _tokens: list[Token[tuple[Override, ...]]] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.schedule is not None and (self.template or self.config):
            raise ConfigError("an override has a schedule, or a template with a config, not both")
        if self.schedule is None and self.template is None and self.config is None:
            raise ConfigError(f"the override of {self.kernel!r} says nothing", hint="template=, config= or schedule=")
        unknown = set(self.config) - {"scheme", "rows", "blocks"} if isinstance(self.config, Mapping) else set()
        if unknown:
            raise ConfigError(f"a config has no {listing(sorted(unknown))}", hint="scheme, rows and blocks")

    def __enter__(self) -> Override:
        self._tokens.append(OVERRIDES.set((*OVERRIDES.get(), self)))
        return self

    def __exit__(self, *_: object) -> None:
        OVERRIDES.reset(self._tokens.pop())

    def is_for(self, symbol: str, group: Function) -> bool:
        return any(fnmatchcase(name, self.kernel) for name in (symbol, *group.span, *span_of(*calls(group.body))))

    def require_used(self, groups: Mapping[str, Function]) -> None:
        """:class:`ConfigError` where no kernel matches."""
        if not any(self.is_for(symbol, group) for symbol, group in groups.items()):
            names = dict.fromkeys(n for s, g in groups.items() for n in (s, *span_of(*calls(g.body))))
            raise ConfigError(f"override: there is no kernel {self.kernel!r}", hint=closest(self.kernel, list(names)))

    def names(self, maker: type[Template]) -> bool:
        """True if a template is the one that is asked for: ``conv_blocked.ConvBlocked``, or the class's name alone."""
        whole = f"{maker.__module__.rpartition('.')[2]}.{maker.__name__}"
        return self.template in (None, whole, maker.__name__)

    def loops(self, template: Template) -> Kernel | Declined:
        """The loops of a template's way that is asked for; :class:`ConfigError` for what is none of its ways."""
        if self.config is None:
            return template.kernel()
        refusal = template.refusal()
        if refusal is not None:
            return refusal
        if self.template is None and not self.ways(template):
            return Declined(f"it has no way {self.config!r}")
        with trying(self.record(template)):
            return template.kernel()

    def record(self, template: Template) -> Record:
        """The way of a template that is asked for, as tuning would have it; :class:`ConfigError` for what is none."""
        found = self.ways(template)
        if not found:
            ways = sorted(template.choices(), key=lambda choice: choice.cycles)
            name = type(template).__name__
            raise ConfigError(
                f"the override of {self.kernel!r}: {self.config!r} is no way of template {name}",
                hint=closest(str(self.config), [str(way) for way in ways][:12]),
            )
        best = min(found, key=lambda choice: (choice.why_not != "", choice.cycles))
        return Record(**asdict(key_of(template)), choice=str(best), cycles=best.cycles)

    def ways(self, template: Template) -> list[Choice]:
        """The template's choices that fit ``config``."""
        return [choice for choice in template.choices() if self._fits(choice)]

    def _fits(self, choice: Choice) -> bool:
        if isinstance(self.config, str):
            return str(choice) == self.config
        have = {"scheme": choice.scheme, "rows": choice.tile.rows, "blocks": choice.tile.blocks}
        return all(have[name] == value for name, value in (self.config or {}).items())


def override(
    kernel: str, template: str | type[Template] | None = None, config: Config | None = None, *, schedule: Any = None
) -> Override:
    """Builds inside ``with override(...)`` make the kernels that ``kernel`` matches (names of kernels or of ONNX nodes;
    ``*`` stands for anything) by a template, by one of its ways, or by a schedule.  Of several the innermost counts.

    ``config`` is a way as ``report.kernel(name).candidates`` prints it, or a dictionary of ``scheme``, ``rows`` and
    ``blocks``, of which the best that fits is taken.  Builds raise :class:`ConfigError` where no kernel matches, where
    the template declines (with its reason), and where it has no such way.
    """
    named = template if template is None or isinstance(template, str) else template.__name__
    return Override(kernel, named, config, schedule)
