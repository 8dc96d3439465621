"""Checks for passes, rules and numbers; for minitvm's own tests and for research code alike.

check_rewrite(drop_zero, before="def @main(%x: Tensor[(2,), int32]) { add(%x, 0i32) }",
                         after="def @main(%x: Tensor[(2,), int32]) { %x }")
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.decision import Exactness
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.parser import parse_module
from minitvm.ir.structural import assert_structural_equal, structural_equal, structural_hash
from minitvm.ir.verify import verify
from minitvm.ir.visitor import calls
from minitvm.passes import InferType, Pass, PassContext, manager
from minitvm.passes.compare import close, difference
from minitvm.passes.draws import DRAWS, Draw
from minitvm.passes.roundings import RTOL
from minitvm.passes.rule import FAST_MATH, Rule, RulePass, rule_pass
from minitvm.passes.verify import compare_numbers, draws_of

Source = str | Module | Function | Expr
Rewriter = Pass | Rule | Sequence[Rule] | Callable[[Module], Module]
_WEAKEST = (Exactness.UNBOUNDED, Exactness.APPROXIMATE, Exactness.REASSOCIATING)


def as_module(source: Source, constants: Mapping[str, np.ndarray] | None = None) -> Module:
    """A module from its text, a function, or an expression over its free variables; types inferred."""
    if isinstance(source, str):
        source = parse_module(source, constants)
    return InferType()(source if isinstance(source, Module) else Module.from_expr(source))


def run_infer_type(source: Source) -> Any:
    """A module, function or expression with all its variables typed: what was given, text as a module."""
    return _as_given(source, as_module(source))


def run_opt_pass(source: Source, passes: Rewriter, opt_level: int = 3, **context: Any) -> Any:
    """A module, function or expression after a pass, a rule or a list of rules, which run whatever their level: what
    was given, text as a module."""
    with PassContext(opt_level=opt_level, **context):
        return _as_given(source, as_pass(passes)(as_module(source)))


def _as_given(source: Source, made: Module) -> Module | Expr:
    if isinstance(source, (str, Module)):
        return made
    return made.main if isinstance(source, Function) else made.main.body


def as_pass(passes: Rewriter) -> Pass:
    """A pass; a rule, a list of them, or a function of modules as one."""
    if isinstance(passes, Sequence):
        return rule_pass(*passes, name="+".join(r.name for r in passes))
    return manager.as_pass(passes)


def _exactness(step: Pass) -> Exactness | str | None:
    """The one that a pass states, or the weakest of its rules'."""
    if not isinstance(step, RulePass):
        return step.info.exactness
    found = {r.exactness for r in step.rules}
    return next((one for one in _WEAKEST if one in found), Exactness.EXACT)


def check_rewrite(
    passes: Rewriter,
    before: Source,
    after: Source,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    rtol: float = RTOL,
    **context: Any,
) -> Module:
    """Assert that a pass turns ``before`` into ``after``, with the same numbers, and leaves its input alone.

    Of rules and passes that are exact (``@function_pass(exactness="exact")``), results keep their bits; where they are
    reassociating, unbounded or approximate, sums may be in another order.  A function of modules is a pass, too.
    Rules that are given themselves may act, whatever they state.  ``constants`` are what ``meta["name"]`` stands for in
    the texts; ``context`` goes to :class:`PassContext` (level 3 by default).  Returns the module that the pass made.
    """
    given, expected = as_module(before, constants), as_module(after, constants)
    found = _run_checked(passes, given, rtol, context)
    try:
        assert_structural_equal(found, expected)
    except MiniTVMError as error:
        raise AssertionError(f"{error.message}\n--- expected\n{expected}\n--- found\n{found}") from error
    have, want = (len(calls(*m.functions.values())) for m in (found, expected))
    assert have == want, f"{have} calls where {want} are expected: a shared node was computed twice\n{found}"
    return found


def check_unchanged(
    passes: Rewriter, source: Source, *, constants: Mapping[str, np.ndarray] | None = None, **context: Any
) -> None:
    """Assert that a pass does not fire: the module comes back as the same object."""
    given = as_module(source, constants)
    found = _run_checked(passes, given, RTOL, context)
    assert found is given, f"{'rebuilt for nothing' if structural_equal(found, given) else 'changed'}:\n{found}"


def _permitted(passes: Rewriter) -> dict[str, Any]:
    """The options under which rules act that are given themselves: what may not act is unchanged for no reason."""
    rules = [passes] if isinstance(passes, Rule) else passes if isinstance(passes, Sequence) else []
    return {FAST_MATH.name: True, "minitvm.allow_approximate": tuple(r.name for r in rules)} if rules else {}


def _run_checked(passes: Rewriter, given: Module, rtol: float, context: dict[str, Any]) -> Module:
    hash_before = structural_hash(given)
    with PassContext(**{"opt_level": 3, **context, "config": _permitted(passes) | context.get("config", {})}):
        found = (step := as_pass(passes))(given)
    assert structural_hash(given) == hash_before, "the pass changed the module that it was given"
    verify(found)
    fast, exactness = context.get("config", {}).get(FAST_MATH.name), _exactness(step)
    rtol = max(rtol, 2 * RTOL) if fast else rtol
    assert_same_numbers(given, found, rtol=rtol, draws=draws_of(step.info), exactness=exactness)
    return found


def assert_same_numbers(
    a: Source,
    b: Source,
    rtol: float = RTOL,
    seed: int = 0,
    draws: Sequence[Draw] = DRAWS,
    exactness: Exactness | str | None = Exactness.UNBOUNDED,
) -> None:
    """Assert that two modules compute the same on random inputs: small, positive, wide, huge and not finite ones.

    ``exactness``: "exact" for the same bits, ``None`` for operators that round as they do; otherwise sums and products
    may be in another order, as far as the magnitudes of what is on the way explain a difference.  Fails, too, where
    nothing could be compared: on no draw does the first module run.
    """
    before, after = as_module(a), as_module(b)
    if before is after:
        return
    try:
        stated = None if exactness is None else Exactness(exactness)
        compared = compare_numbers(before, after, "the rewrite", rtol, seed, draws, exactness=stated)
    except MiniTVMError as error:
        raise AssertionError(str(error)) from error
    assert compared.agreed, f"the numbers cannot be compared: no random inputs are accepted by\n{before}"


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    """Assert that arrays (or anything with ``.numpy()``) agree: same shape, elements to ``atol + rtol * |desired|``."""
    have, want = (np.asarray(x.numpy() if hasattr(x, "numpy") else x) for x in (actual, desired))
    assert have.shape == want.shape, f"the shape is {have.shape}, expected {want.shape}"
    np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


def assert_close_to_scale(actual: Any, desired: Any, rtol: float = RTOL) -> None:
    """Assert that arrays agree to ``rtol`` of the largest magnitude, with the same shape and dtype."""
    have, want = (np.asarray(x.numpy() if hasattr(x, "numpy") else x) for x in (actual, desired))
    assert close(have, want, rtol), difference(have, want)
