"""ConvertLayout: the whole graph in the layouts that a person asks for.

``{"nn.conv2d": ["NHWC", "OHWI"]}``: data and kernel layout of each operator named; ``"default"`` for the kernel is
the usual partner of the data layout.  Everything around follows as far as it can (``Op.relayout``).
"""

from collections.abc import Mapping, Sequence

from minitvm.errors import PassError, TypeInferenceError
from minitvm.ir.attributes import attributes_of
from minitvm.ir.decision import Declined
from minitvm.ir.dims import Undecided
from minitvm.ir.expr import Function, Module
from minitvm.ir.layout import Layout
from minitvm.ir.op import OPS, Op
from minitvm.ir.relayout import Move, Placement, Site, calling
from minitvm.ir.visitor import rebuild
from minitvm.passes.alter_op_layout import LayoutRewriter
from minitvm.passes.manager import FunctionPass, PassContext

PARTNERS = {"NCHW": "OIHW", "NHWC": "HWIO", "HWNC": "HWOI"}
"""The kernel layout that ``"default"`` means, by data layout."""

DEPTHWISE_PARTNERS = {**PARTNERS, "NHWC": "HWOI"}


class ConvertLayout(FunctionPass, opt_level=3, required=("InferType", "CanonicalizeOps")):
    """The operators named in ``desired`` in its layouts: ``ConvertLayout({"nn.conv2d": ["NHWC", "default"]})``.

    Parameters and results keep theirs.  Raises :class:`PassError` for an operator that is unknown or has no layout, and
    for a malformed entry.
    """

    def __init__(self, desired: Mapping[str, Sequence[str]]) -> None:
        if not isinstance(desired, Mapping):
            hint = 'ConvertLayout({"nn.conv2d": ["NHWC", "default"]})'
            raise PassError(f"ConvertLayout: {desired!r} is no dictionary of lists of layouts", hint=hint)
        for name, layouts in desired.items():
            _check_desired(name, layouts)
        self.desired = {name: tuple(layouts) for name, layouts in desired.items()}

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return LayoutRewriter(self.info.name, self._propose).run(function)

    def _propose(self, site: Site) -> Placement | Declined | None:
        desired = self.desired.get(site.op.name)
        if desired is None:
            return None
        names = _layout_attributes(type(site.op))
        now: list[str] = [getattr(site.op, name) for name in names]
        wanted = [desired[0], *([_kernel(site, desired)] if len(names) == 2 else [])]
        if any(not Layout(a).compatible(Layout(b)) for a, b in zip(now, wanted, strict=True)):
            return Declined(f"{' and '.join(now)} cannot become {' and '.join(wanted)}")
        moves = [None if a == b else Move.of(a, b) for a, b in zip(now, wanted, strict=True)]
        if (why_not := _misfit(site, moves)) is not None:
            return why_not
        args = (*moves, *(None for _ in site.call.args[len(moves) :]))
        if now == wanted:  # it gets its arguments as they were, whatever its producers hold
            return Placement(args, None, lambda operands: rebuild(site.call, operands))
        return Placement(args, moves[0], calling(site.op.with_attributes(**dict(zip(names, wanted, strict=True)))))


def _misfit(site: Site, moves: Sequence[Move | None]) -> Declined | None:
    """Why an operand or the result cannot be held so."""
    operands = [site.type(index) for index in range(len(moves))]
    try:
        for move, type_ in zip((*moves, moves[0]), (*operands, site.call.tensor_type), strict=True):
            if move is not None:
                move.new.shape_from(move.old, type_.shape)
    except (TypeInferenceError, Undecided) as error:
        return Declined(str(error).partition("\n")[0])
    return None


def _check_desired(name: str, layouts: Sequence[str]) -> None:
    """Raise :class:`PassError` where ConvertLayout cannot mean anything by this entry."""
    expected = len(_layout_attributes(OPS[name])) if name in OPS else 0
    if not expected:
        known = ", ".join(sorted(n for n, op in OPS.items() if _layout_attributes(op)))
        raise PassError(
            f"ConvertLayout: {name!r} is not an operator with a layout", hint=f"operators with one: {known}"
        )
    if not isinstance(layouts, (list, tuple)) or not 1 <= len(layouts) <= expected:
        wrong = f"ConvertLayout: {name} takes a list of 1 to {expected} layouts, not {layouts!r}"
        raise PassError(wrong, hint='write {"nn.conv2d": ["NHWC", "OHWI"]}')
    if layouts[0] == "default":
        unnamed = f"ConvertLayout: the data layout of {name} must be named"
        raise PassError(unnamed, hint='only the kernel\'s may be "default"')


def _layout_attributes(op: type[Op]) -> tuple[str, ...]:
    known = attributes_of(op).keys()
    return next((names for names in (("data_layout", "kernel_layout"), ("layout",)) if known >= set(names)), ())


def _kernel(site: Site, desired: Sequence[str]) -> str:
    if len(desired) > 1 and desired[1] != "default":
        return desired[1]
    attributes = site.op.attributes()
    groups, layout = attributes.get("groups", 1), Layout(attributes["data_layout"])
    channels = site.type(0).sizes[layout.index("C")] if "C" in layout else None
    partners = DEPTHWISE_PARTNERS if groups > 1 and groups == channels else PARTNERS
    if desired[0] not in partners:
        hint = f"name it: [{desired[0]!r}, 'OIHW']"
        raise PassError(f"ConvertLayout: no kernel layout is usual for {desired[0]}", hint=hint)
    return partners[desired[0]]
