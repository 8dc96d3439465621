"""Checks a module: acyclic, every variable bound, typed as the operators say."""

from minitvm.errors import IRError, MiniTVMError, origin
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var, describe_call, infer_call
from minitvm.ir.text import format_name, operands
from minitvm.ir.types import Type, alike, type_of
from minitvm.ir.visitor import post_order


def verify(module: Module) -> None:
    """Raise :class:`IRError`, with the function and the place, where ``module`` is not well formed.

    * it has functions, and nodes are what the IR knows; no node lies below itself;
    * a function's parameters are variables with names that differ; every other variable in its body is an error:
      functions, nested ones too, are closed;
    * calls have as many arguments as their operator takes; projections are within their tuples;
    * a node's type is what its operands' types give; constants are read-only.

    Types that are still open (``checked_type is None``) are allowed: ``InferType`` solves them.
    """
    if not module.functions:
        raise IRError("the module has no functions", hint="give it a function named main")
    for name, function in module.functions.items():
        if not isinstance(function, Function):
            raise IRError(f"@{format_name(name)} is a {type(function).__name__}, not a Function")
        _Verifier(name).function(function)


class _Verifier:
    """Checks one function of the module and the functions nested in it, each once."""

    def __init__(self, name: str) -> None:
        self.name = f"@{format_name(name)}"
        self.done: set[Function] = set()

    def error(self, message: str, node: Expr | None = None, hint: str | None = None) -> IRError:
        return IRError(f"{self.name}: {message}", where=_place(node), hint=hint)

    def function(self, root: Function) -> None:
        """``root`` and what is nested in it, from a list: nesting does not use up Python's stack."""
        pending: list[tuple[Function, tuple[Function, ...]]] = [(root, (root,))]
        while pending:
            function, around = pending.pop()
            if function in self.done:
                continue
            self.done.add(function)
            for inner in self.body(function):
                if inner in around:
                    raise self.error("the graph has a cycle: a function calls itself", inner)
                pending.append((inner, (*around, inner)))

    def body(self, function: Function) -> list[Function]:
        """Checks one function without those nested in it, which it returns."""
        bound = self.params(function)
        nested: list[Function] = []
        for node in self.order(function.body):
            if isinstance(node, Function):
                nested.append(node)
            else:
                self.node(node, bound)
        found = Function(function.params, function.body).checked_type
        if not alike(function.checked_type, found):
            raise self.error(f"the function's type is {function.checked_type}, its parts give {found}", function)
        return nested

    def order(self, body: Expr) -> list[Expr]:
        try:
            return post_order(body, operands=_known_operands)
        except IRError as error:
            raise self.error(error.message, hint="build new nodes instead of changing old ones") from error

    def params(self, function: Function) -> set[Var]:
        names: dict[str, Var] = {}
        for param in function.params:
            if not isinstance(param, Var):
                raise self.error(f"a parameter is a {type(param).__name__}, not a Var", param)
            if param.name in names:
                same = "the same variable twice" if names[param.name] is param else "two variables of that name"
                raise self.error(f"%{format_name(param.name)} stands twice among the parameters: {same}", function)
            names[param.name] = param
        return set(names.values())

    def node(self, node: Expr, bound: set[Var]) -> None:
        if isinstance(node, Var):
            if node not in bound:
                raise self.error(
                    f"%{format_name(node.name)} is not bound: it is not a parameter of the function it stands in",
                    node,
                    "Module.from_expr and builder.function collect free variables as parameters",
                )
            return
        if isinstance(node, Constant) and node.value.flags.writeable:
            raise self.error(f"a constant {node.type} is writable", node, "build it with Constant(array)")
        found = self.infer(node)
        if not alike(node.checked_type, found):
            message = f"a {type(node).__name__} has the type {node.checked_type}, its operands give {found}"
            raise self.error(message, node)

    def infer(self, node: Expr) -> Type | None:
        try:
            if isinstance(node, Call):
                return infer_call(node)
            if isinstance(node, Constant):
                return type_of(node.value)
            assert isinstance(node, (Tuple, TupleGetItem)), node
            again = Tuple(node.fields) if isinstance(node, Tuple) else TupleGetItem(node.tuple, node.index)
            return again.checked_type
        except MiniTVMError as error:
            raise IRError(
                f"{self.name}: {error.message}", where=error.where or _place(node), hint=error.hint
            ) from error


def _known_operands(node: Expr) -> tuple[Expr, ...]:
    if not isinstance(node, (Call, Constant, Function, Tuple, TupleGetItem, Var)):
        raise IRError(f"{node!r} is not a node of the graph")
    return operands(node)


def _place(node: Expr | None) -> list[str]:
    """The node in a line or a few, without what lies below it."""
    if isinstance(node, Call):
        return describe_call(node)
    if node is None:
        return []
    if isinstance(node, Function):
        name = node.attrs.get("name")
        return [f"in the function {name}" if name else f"in a function of {len(node.params)} parameters"]
    return [f"a {type(node).__name__}: {node.checked_type} {origin(node.span)}".rstrip()]
