"""Equality saturation over a graph of minitvm's, by egglog: terms go there, the cheapest equal ones come back."""

from __future__ import annotations

import egglog
import numpy as np

import minitvm
from minitvm import relay
from minitvm.ir.evaluate import evaluate
from minitvm.ir.visitor import calls
from minitvm.lab.terms import Term, module_of, terms


class Value(egglog.Expr):
    def __init__(self, leaf: egglog.StringLike) -> None: ...


@egglog.function
def op(head: egglog.StringLike, x: Value, y: Value) -> Value: ...


def saturated(rows: list[Term]) -> list[Term]:
    """The same function with fewer operators; of binary ones without attributes, and of one shape."""
    leaves = {term.head: term for term in rows if term.leaf is not None}
    made: list[Value] = []
    for term in rows:
        made.append(Value(term.head) if term.leaf is not None else op(term.head, *(made[n] for n in term.args)))
    x, y, z = egglog.vars_("x y z", Value)
    egraph = egglog.EGraph()
    egraph.register(made[-1])
    egraph.register(
        egglog.rewrite(op("multiply", x, y)).to(op("multiply", y, x)),
        egglog.rewrite(op("add", op("multiply", x, y), op("multiply", x, z))).to(op("multiply", x, op("add", y, z))),
    )
    egraph.run(6)
    found: list[Term] = []
    places: dict[str, int] = {}

    def back(value: Value) -> int:
        if str(value) not in places:
            first, *others = egglog.get_callable_args(value)
            args = tuple(back(one) for one in others)
            name = egglog.get_literal_value(first)
            found.append(Term(name, args) if others else leaves[name])
            places[str(value)] = len(found) - 1
        return places[str(value)]

    back(egraph.extract(made[-1]))
    return [*found[:-1], Term(found[-1].head, found[-1].args, type=rows[-1].type)]  # of the type that it had


x, a, b, c = (relay.var(name, shape=(4, 4)) for name in "xabc")
before = minitvm.IRModule.from_expr(x * a + b * x + c * x)
after = module_of(saturated(terms(before.main)))
print(f"{len(calls(before.main))} operators before, {len(calls(after.main))} after")
print(after)

arrays = {name: np.random.default_rng(n).normal(size=(4, 4)).astype("float32") for n, name in enumerate("xabc")}
results = [evaluate(m, *(arrays[p.name] for p in m.main.params)) for m in (before, after)]
assert np.allclose(*results, rtol=1e-5, atol=1e-5)
