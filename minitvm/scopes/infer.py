"""Types of what has scopes: a variable has its value's, a parameter that of the arguments, a function that calls itself
the type of what ends it, or the one that it was declared with.

In rounds: each builds the nodes again over what the one before has found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitvm.errors import TypeInferenceError
from minitvm.ir.expr import Call, Expr, Function, Module, Var
from minitvm.ir.op import Op
from minitvm.ir.types import FuncType, Type, accepts
from minitvm.ir.visitor import as_function, children, rebuild
from minitvm.scopes.nodes import Apply, Binding, Global, Let, applied, declared, everything, in_order, signature_of

ROUNDS = 12
"""More are a mistake: each finds the type of something."""


def infer(expr: Expr, types: Mapping[str, FuncType | None] | None = None) -> Expr:
    """An expression with the types that its parts determine; itself where that is nothing new."""
    solved: dict[Var, Var] = {}
    for _ in range(ROUNDS):
        before = len(solved)
        made = _Round(types or {}, solved).run(expr)
        if made is expr and len(solved) == before:
            break
        expr = made
    return expr


def infer_module(module: Module) -> Module:
    """A module all of whose functions have types; :class:`TypeInferenceError` where one has none."""
    functions = dict(module.functions)
    for _ in range(ROUNDS):
        types = {str(name): signature_of(function) for name, function in functions.items()}
        made = {name: as_function(infer(function, types)) for name, function in functions.items()}
        if all(made[name] is functions[name] for name in made):
            break
        functions = made
    for name, function in functions.items():
        if signature_of(function) is None:
            raise _open(str(name), function)
    return module if functions == dict(module.functions) else Module(functions)


def _open(name: str, function: Function) -> TypeInferenceError:
    """Says which variable has no type; where all have, that the function has no end."""
    untyped = [node for node in everything(function) if isinstance(node, Var) and node.checked_type is None]
    untyped += [param for param in function.params if param.checked_type is None]
    if untyped:
        return TypeInferenceError(
            f"the type of %{untyped[0].name} in @{name} cannot be inferred from its uses",
            hint=f'give the variable a type: var("{untyped[0].name}", TensorType(shape, dtype))',
        )
    names = [node for node in everything(function) if isinstance(node, Global)]
    unknown = [node.name_hint for node in names if node.checked_type is None and node.name_hint != name]
    what = f"@{unknown[0]}, which it calls, has none" if unknown else "nothing ends its recursion"
    return TypeInferenceError(
        f"the type of @{name}'s result is open: {what}", hint="say it: Function(params, body, ret_type)"
    )


class _Round:
    def __init__(self, types: Mapping[str, FuncType | None], solved: dict[Var, Var]) -> None:
        self.types, self.solved = types, solved
        self.done: dict[Expr, Expr] = {}
        self.functions: dict[Expr, Function] = {}
        """What variables are bound to."""

    def run(self, root: Expr) -> Expr:
        for node in in_order(root):
            if isinstance(node, Binding):
                self.bind(node.let)
            else:
                self.done[node] = self.made(node)
        return self.done[root]

    def bind(self, let: Let) -> None:
        value = self.done[let.value]
        type_ = signature_of(value) if isinstance(value, Function) else value.checked_type
        if isinstance(value, Function):
            self.functions[let.var] = value
        self.done[let.var] = self.solve(let.var, type_)

    def solve(self, var: Var, type_: Type | None) -> Expr:
        """A variable, of that type where it had none."""
        if var.checked_type is None and type_ is not None:
            self.solved.setdefault(var, Var(var.name, type_, span=var.span))
        return self.solved.get(var, var)

    def made(self, node: Expr) -> Expr:
        if isinstance(node, Var):
            return self.done.get(node) or self.solved.get(node, node)
        if isinstance(node, Global):
            known = self.types.get(node.name_hint)
            return node if known is None or node.checked_type == known else Global(node.name_hint, known, node.span)
        if isinstance(node, Function):
            return self.function(node)
        if isinstance(node, (Apply, Call)):
            return self.call(node)
        if isinstance(node, Let):
            made = rebuild(node, (self.done[node.var], self.done[node.value], self.done[node.body]))
            assert isinstance(made, Let)
            made.check()
            return made
        return rebuild(node, [self.done[part] for part in children(node)])

    def function(self, node: Function) -> Expr:
        if node.is_primitive:
            return node
        params = [self.solved.get(p, p) for p in node.params]
        made = as_function(rebuild(node, (*params, self.done[node.body])))
        result = declared.get(node)
        if made is not node and result is not None and made.checked_type is None:
            declared[made] = result
        if result is not None and made.body.checked_type and not accepts(result, made.body.checked_type):
            raise TypeInferenceError(f"the function is declared as {result}, its body is {made.body.checked_type}")
        return made

    def call(self, node: Apply | Call) -> Expr:
        """A call, whose arguments tell types of parameters, and parameters those of arguments."""
        args = [self.done[arg] for arg in node.args]
        if isinstance(node.op, Op):
            if any(arg.checked_type is None and isinstance(arg, Var) for arg in args):
                found = node.op.solve([arg.checked_type for arg in args])
                args = [self.argument(*pair) for pair in zip(node.args, found, strict=True)]
            return rebuild(node, args)
        if isinstance(node.op, Function) and node.op.is_primitive:
            return rebuild(node, args)
        op = self.done[node.op]
        called = op if isinstance(op, Function) else self.functions.get(node.op)
        params = called.params if called is not None else ()
        for param, arg in zip(params, args, strict=False):
            self.solve(param, arg.checked_type)
        type_ = op.checked_type
        wanted: tuple[Any, ...] = type_.params if isinstance(type_, FuncType) else tuple(p.checked_type for p in params)
        args = [self.argument(*pair) for pair in zip(node.args, wanted, strict=False)] if wanted else args
        if len(args) != len(node.args):
            args = [self.done[arg] for arg in node.args]
        if op is node.op and all(a is b for a, b in zip(args, node.args, strict=True)):
            return node
        return applied(op, args, node.span)

    def argument(self, arg: Expr, type_: Type | None) -> Expr:
        made = self.done[arg]
        if isinstance(made, Var) and made.checked_type is None and isinstance(arg, Var):
            self.done[arg] = made = self.solve(arg, type_)
        return made
