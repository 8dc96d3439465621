"""ConvertLayout: the whole graph in the layouts that a person asks for.

``{"nn.conv2d": ["NHWC", "OHWI"]}``: data and kernel layout of each operator named; ``"default"`` for the kernel is
the usual partner of the data layout.  Everything around follows as far as it can (``Op.relayout``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minitvm.errors import PassError
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Function, Module
from minitvm.ir.layout import Layout
from minitvm.ir.op import OPS, Op
from minitvm.ir.relayout import Move, Placement, Site, calling
from minitvm.ir.visitor import rebuild
from minitvm.passes.layout.rewriter import LayoutRewriter
from minitvm.passes.manager import FunctionPass, PassContext

Desired = Mapping[str, Sequence[str]]

PARTNERS = {"NCHW": "OIHW", "NHWC": "HWIO", "HWNC": "HWOI"}
"""The kernel layout that ``"default"`` means, by data layout."""

DEPTHWISE_PARTNERS = {**PARTNERS, "NHWC": "HWOI"}


def convert_layout(function: Function, desired: Desired) -> Function:
    """``function`` with the operators of ``desired`` in its layouts; parameters and result keep theirs.

    Raises :class:`PassError` for an operator that is unknown or has no layout, and for a malformed entry.
    """
    for name, layouts in desired.items():
        check_desired(name, layouts)

    def propose(site: Site) -> Placement | Declined | None:
        layouts = desired.get(site.op.name)
        return None if layouts is None else _convert(site, layouts)

    return LayoutRewriter("ConvertLayout", propose).run(function)


def check_desired(name: str, layouts: Sequence[str]) -> None:
    """Raise :class:`PassError` where ConvertLayout cannot mean anything by this entry."""
    known = sorted(n for n, op in OPS.items() if _layout_attributes(op))
    if name not in OPS or not _layout_attributes(OPS[name]):
        raise PassError(
            f"ConvertLayout: {name!r} is not an operator with a layout", hint=f"operators with one: {', '.join(known)}"
        )
    expected = len(_layout_attributes(OPS[name]))
    if not isinstance(layouts, (list, tuple)) or not 1 <= len(layouts) <= expected:
        raise PassError(
            f"ConvertLayout: {name} takes a list of 1 to {expected} layouts, not {layouts!r}",
            hint='write {"nn.conv2d": ["NHWC", "OHWI"]}',
        )
    if layouts[0] == "default":
        raise PassError(
            f"ConvertLayout: the data layout of {name} must be named", hint='only the kernel\'s may be "default"'
        )


def _layout_attributes(op: type[Op]) -> tuple[str, ...]:
    fields = getattr(op, "__dataclass_fields__", {})
    return next((names for names in (("data_layout", "kernel_layout"), ("layout",)) if set(names) <= set(fields)), ())


def _convert(site: Site, desired: Sequence[str]) -> Placement | Declined:
    names = _layout_attributes(type(site.op))
    now: list[str] = [site.op.attributes()[name] for name in names]
    wanted = [desired[0]]
    if len(names) == 2:
        wanted.append(_kernel(site, desired))
    if any(not Layout(a).compatible(Layout(b)) for a, b in zip(now, wanted, strict=True)):
        return Declined(f"{' and '.join(now)} cannot become {' and '.join(wanted)}")
    moves = [None if a == b else Move.of(a, b) for a, b in zip(now, wanted, strict=True)]
    args = (*moves, *(None for _ in site.call.args[len(moves) :]))
    if now == wanted:  # it gets its arguments as they were, whatever its producers hold
        return Placement(args, None, lambda operands: rebuild(site.call, operands))
    return Placement(args, moves[0], calling(site.op.with_attributes(**dict(zip(names, wanted, strict=True)))))


def _kernel(site: Site, desired: Sequence[str]) -> str:
    if len(desired) > 1 and desired[1] != "default":
        return desired[1]
    groups: int = site.op.attributes().get("groups", 1)
    partners = DEPTHWISE_PARTNERS if groups > 1 and groups == _channels(site) else PARTNERS
    if desired[0] not in partners:
        raise PassError(
            f"ConvertLayout: no kernel layout is usual for {desired[0]}", hint=f"name it: [{desired[0]!r}, 'OIHW']"
        )
    return partners[desired[0]]


def _channels(site: Site) -> int | None:
    layout = Layout(site.op.attributes()["data_layout"])
    return site.type(0).sizes[layout.index("C")] if "C" in layout else None


class ConvertLayout(FunctionPass, opt_level=3, required=("InferType", "CanonicalizeOps")):
    """The operators named in ``desired`` in its layouts: ``ConvertLayout({"nn.conv2d": ["NHWC", "default"]})``."""

    def __init__(self, desired: Desired) -> None:
        if not isinstance(desired, Mapping):
            raise PassError(
                f"ConvertLayout: {desired!r} is no dictionary of lists of layouts",
                hint='ConvertLayout({"nn.conv2d": ["NHWC", "default"]})',
            )
        for name, layouts in desired.items():
            check_desired(name, layouts)
        self.desired = {name: tuple(layouts) for name, layouts in desired.items()}

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return convert_layout(function, self.desired)
