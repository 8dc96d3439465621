"""What passes make of modules near those of their tests: of other dtypes, attributes, extents, users, constants.

    python -m tests.passes.near [tests/passes/test_attention.py ...]      # notes what the tests give to passes, anew
    python -m tests.passes.near --again                                   # what becomes of them, after a change

``near.jsonl`` has a line for each module: the pass, its text, and a few letters of the hash of what becomes of each
module near it.  Whatever is written there agreed with the module before the pass, by numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.dtypes import STORED
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, Var
from minitvm.ir.op import OPS, Op
from minitvm.ir.polynomials import Undecided
from minitvm.ir.text import module_constants
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, post_order, rewrite
from minitvm.passes import InferType, Pass, PassContext, RulePass, get_pass, rule_pass
from minitvm.passes.alter_op_layout import AlterOpLayout
from minitvm.passes.convert_layout import ConvertLayout
from minitvm.passes.draws import DRAWS
from minitvm.passes.manager import PASSES
from minitvm.passes.rule import FAST_MATH, Rule
from minitvm.passes.share_rows import ShareRows
from minitvm.passes.verify import draws_of
from minitvm.target import MachineModel
from minitvm.testing.checks import as_module, assert_same_numbers

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.lab import own_guards

HERE = Path(__file__).parent
DATA = HERE / "near.jsonl"
NEAR = 18
"""Modules near one; the first is itself."""
FEW_CALLS, FEW_BYTES = 40, 1 << 18
MACHINE = MachineModel(vector_bytes=16, vector_registers=16)
MAKERS: dict[str, Callable[[], Pass]] = {
    "AlterOpLayout": lambda: AlterOpLayout(MACHINE),
    "ConvertLayout": lambda: ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"], "nn.max_pool2d": ["NHWC"]}),
    "ShareRows": lambda: ShareRows(MACHINE),
}
"""Of passes that take arguments."""


@dataclasses.dataclass
class Case:
    """A module that a pass is given, and the hashes of what becomes of those near it."""

    step: str
    config: dict[str, Any]
    text: str
    constants: dict[str, list[Any]]
    becomes: str = ""

    @functools.cached_property
    def module(self) -> Module:
        return as_module(self.text, {name: _array(name, *given) for name, given in self.constants.items()})

    def outcomes(self) -> list[str]:
        return [self.outcome(near) for near in nearby(self.module)]

    def outcome(self, near: Module | None) -> str:
        """``-``: there is none; ``=``: it stays; ``!``: the pass refuses it."""
        if near is None:
            return "-"
        step, options = made(self.step)
        try:
            with PassContext(opt_level=3, config={**options, **self.config}):
                found = step(near)
        except MiniTVMError as error:
            return f"!{type(error).__name__}"
        return "=" if found is near else _hash(found)

    def check_numbers(self) -> None:
        """What becomes of each agrees with it, where numbers can be had of both, in as many bits."""
        step, options = made(self.step)
        draws = DRAWS[:2] if options else draws_of(step.info)
        for near in () if step.info.rounds else filter(None, nearby(self.module)):
            try:
                with PassContext(opt_level=3, config={**options, **self.config}):
                    found = step(near)
            except MiniTVMError:
                continue
            try:
                assert_same_numbers(near, found, draws=draws)
            except Undecided:
                continue
            except AssertionError as error:
                if not re.search(r"cannot be compared|known only when the model runs", str(error)):
                    raise


def made(step: str) -> tuple[Pass, dict[str, Any]]:
    """A pass by its name, or that of rules, by modules and names; with the options under which these act."""
    if ":" not in step:
        return (MAKERS[step]() if step in MAKERS else get_pass(step)), {}
    homes = [rule.split(":") for rule in step.split()]
    rules = [getattr(importlib.import_module(module), name) for module, name in homes]
    names = tuple(rule.name for rule in rules)
    return rule_pass(*rules, name="+".join(names)), {FAST_MATH.name: True, "minitvm.allow_approximate": names}


def _hash(module: Module) -> str:
    return hashlib.sha1(module.astext(show_meta_data=False).encode()).hexdigest()[:6]


def _array(name: str, dtype: str, shape: Sequence[int], values: Any) -> np.ndarray:
    kind = np.dtype(STORED.get(dtype, dtype))
    if values is not None:
        return np.asarray(values, kind).reshape(shape).astype(dtype)
    rng = np.random.default_rng(zlib.crc32(f"{name}{shape}".encode()))
    drawn = rng.standard_normal(shape) if kind.kind == "f" else rng.integers(0, 4, shape)
    return np.asarray(drawn).astype(kind).astype(dtype)


# --- modules near one -------------------------------------------------------------------------------------------------


def nearby(module: Module) -> Iterator[Module | None]:
    """The module, and ``NEAR - 1`` that differ from it in one thing; ``None`` for one that has no types."""
    yield module
    seed = zlib.crc32(module.astext(show_meta_data=False).encode())
    for turn in range(1, NEAR):
        change = CHANGES[turn % len(CHANGES)]
        try:
            other = change(module.main, np.random.default_rng([seed, turn]))
            yield InferType()(module.with_function("main", other)) if other is not None else None
        except (MiniTVMError, ValueError, TypeError, ArithmeticError, IndexError):
            yield None


Change = Callable[[Function, np.random.Generator], "Function | None"]


def _replaced(function: Function, old: Expr, new: Callable[[Expr], Expr]) -> Function:
    return as_function(rewrite(function, lambda node, now: new(now) if node is old else now))


def _one(rng: np.random.Generator, function: Function, kind: type[Any], fits: Callable[[Any], bool] = bool) -> Any:
    found = [n for n in post_order(function.body) if isinstance(n, kind) and (fits is bool or fits(n))]
    return found[rng.integers(len(found))]  # ValueError: there is none


def _with_types(function: Function, change: Callable[[TensorType], TensorType]) -> Function:
    """Other types of parameters and constants."""

    def visit(old: Expr, new: Expr) -> Expr:
        if isinstance(new, Var) and isinstance(new.type, TensorType):
            return Var(new.name, change(new.type))
        if isinstance(new, Constant):
            type_ = change(new.tensor_type)
            shape = tuple(int(n) for n in type_.shape)
            return Constant(np.resize(new.value, shape).astype(type_.dtype), new.name)
        return new

    return as_function(rewrite(function, visit))


def of_other_dtype(function: Function, rng: np.random.Generator) -> Function | None:
    first = next((p.type.dtype for p in function.params if isinstance(p.type, TensorType)), "float32")
    other = [d for d in ("float16", "float64", "int32", "float32", "int8", "uint8") if d != first][rng.integers(5)]
    return _with_types(function, lambda t: t.with_dtype(other) if t.dtype == first else t)


def of_other_extent(function: Function, rng: np.random.Generator) -> Function | None:
    """One extent is another everywhere, such as one that is there already."""
    shapes = [p.type.shape for p in function.params if isinstance(p.type, TensorType)]
    sizes = sorted({d for shape in shapes for d in shape if isinstance(d, int)})
    old, new = rng.choice(sizes), int(rng.choice([*sizes, *sizes, 1, 2, 3, 4, 8]))
    return _with_types(function, lambda t: TensorType(tuple(new if d == old else d for d in t.shape), t.dtype))


def of_an_open_extent(function: Function, rng: np.random.Generator) -> Function | None:
    param = _one(rng, function, Var, lambda v: isinstance(v.type, TensorType) and v.type.rank > 0)
    at = rng.integers(param.type.rank)
    size = param.type.shape[at]

    def visit(old: Expr, new: Expr) -> Expr:
        if not isinstance(new, Var) or not isinstance(new.type, TensorType):
            return new
        opens = [(i == at and new.name == param.name) or d == size != 1 for i, d in enumerate(new.type.shape)]
        shape = ", ".join("n" if o else str(d) for o, d in zip(opens, new.type.shape, strict=True))
        text = f"def @main(%x: Tensor[({shape},), {new.type.dtype}]) {{ %x }}"
        return Var(new.name, as_module(text).main.params[0].type)

    return as_function(rewrite(function, visit))


def with_another_user(function: Function, rng: np.random.Generator) -> Function | None:
    node = _one(rng, function, Call, lambda c: isinstance(c.type, TensorType))
    fields = function.body.fields if isinstance(function.body, Tuple) else (function.body,)
    return Function(function.params, Tuple([*fields, node]))


def with_another_constant(function: Function, rng: np.random.Generator) -> Function | None:
    node = _one(rng, function, Constant)
    kind = rng.integers(7)
    value = node.value.copy()
    if kind == 0:
        value = -value
    elif kind == 1:
        value = np.zeros_like(value)
    elif kind == 2:
        value = np.ones_like(value)
    elif kind == 3:
        value = value * np.asarray(2, value.dtype) + np.asarray(1, value.dtype)
    elif kind == 4:
        value = value.reshape(-1)[:1].reshape((1,) * value.ndim)
    elif kind == 5:
        value = np.broadcast_to(value, value.shape or (1,)).copy()
        value.reshape(-1)[rng.integers(value.size)] = np.inf if value.dtype.kind == "f" else 7
    else:
        value = value[None]
    return _replaced(function, node, lambda _: Constant(value, node.name))


def with_a_parameter_for_a_constant(function: Function, rng: np.random.Generator) -> Function | None:
    node = _one(rng, function, Constant)
    fresh = Var("fresh", node.tensor_type)
    made = _replaced(function, node, lambda _: fresh)
    return Function((*made.params, fresh), made.body)


def with_a_constant_for_a_parameter(function: Function, rng: np.random.Generator) -> Function | None:
    tensors = [p for p in function.params if isinstance(p.type, TensorType)]
    node = tensors[rng.integers(len(tensors))]
    value = _array(node.name, node.type.dtype, node.type.static_shape, None)
    body = rewrite(Tuple([function.body]), lambda old, new: Constant(value, node.name) if old is node else new)
    return Function([p for p in function.params if p is not node], body.fields[0])  # type: ignore[attr-defined]


def with_one_parameter_for_another(function: Function, rng: np.random.Generator) -> Function | None:
    pairs = [(a, b) for a in function.params for b in function.params if a is not b and a.type == b.type]
    a, b = pairs[rng.integers(len(pairs))]
    body = rewrite(Tuple([function.body]), lambda old, new: b if old is a else new)
    return Function([p for p in function.params if p is not a], body.fields[0])  # type: ignore[attr-defined]


def with_another_attribute(function: Function, rng: np.random.Generator) -> Function | None:
    node = _one(rng, function, Call, lambda c: isinstance(c.op, Op) and c.op.attributes())
    names = list(node.op.attributes())
    name = names[rng.integers(len(names))]
    value = _other(getattr(node.op, name), rng)
    return _replaced(function, node, lambda now: Call(node.op.with_attributes(**{name: value}), now.args))


def _other(value: Any, rng: np.random.Generator) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + int(rng.choice([1, -1, 2]))
        case float():
            return float(rng.choice([-value, value * 2, value + 1, 0.0]))
        case str():
            return value[::-1] if value.isupper() else str(rng.choice(["float16", "float64", "int32", ""]))
        case tuple() if value:
            at = int(rng.integers(len(value)))
            moved = (*value[at:], *value[:at])
            return (
                moved
                if moved != value and rng.random() < 0.5
                else (*value[:at], _other(value[at], rng), *value[at + 1 :])
            )
    raise ValueError(value)


def with_another_operator(function: Function, rng: np.random.Generator) -> Function | None:
    node = _one(rng, function, Call, lambda c: isinstance(c.op, Op))
    others = {1: ["negative", "nn.relu", "abs", "exp"], 2: ["add", "multiply", "subtract", "divide", "maximum"]}
    name = str(rng.choice([n for n in others.get(len(node.args), []) if n != node.op.name]))
    return _replaced(function, node, lambda now: Call(OPS[name](), now.args))


def with_operands_swapped(function: Function, rng: np.random.Generator) -> Function | None:
    node = _one(rng, function, Call, lambda c: len(c.args) >= 2)
    a, b = rng.permutation(len(node.args))[:2]

    def swapped(now: Expr) -> Expr:
        assert isinstance(now, Call)
        args = list(now.args)
        args[a], args[b] = args[b], args[a]
        return Call(now.op, args)

    return _replaced(function, node, swapped)


def with_something_between(function: Function, rng: np.random.Generator) -> Function | None:
    node = _one(rng, function, Call, lambda c: isinstance(c.type, TensorType) and c.type.is_static)
    kind, rank = rng.integers(4), node.tensor_type.rank

    def between(now: Expr) -> Expr:
        if kind == 0:
            return Call(OPS[str(rng.choice(["negative", "nn.relu", "copy"]))](), [now])
        if kind == 1:
            return Call(OPS["reshape"](newshape=tuple(node.shape)), [now])
        if kind == 2:
            return Call(OPS["multiply"](), [now, Constant(np.asarray(2, now.dtype))])
        return Call(OPS["transpose"](axes=tuple(range(rank))[::-1]), [now])

    return _replaced(function, node, between)


CHANGES: tuple[Change, ...] = (
    with_another_attribute,
    of_other_dtype,
    with_another_user,
    with_another_constant,
    with_another_operator,
    of_other_extent,
    with_operands_swapped,
    with_something_between,
    with_a_parameter_for_a_constant,
    with_a_constant_for_a_parameter,
    of_an_open_extent,
    with_one_parameter_for_another,
)


# --- the file ---------------------------------------------------------------------------------------------------------


def cases() -> list[Case]:
    return [Case(**json.loads(line)) for line in DATA.read_text(encoding="utf-8").splitlines()]


def write(found: Sequence[Case]) -> None:
    lines = [json.dumps(dataclasses.asdict(case)) for case in sorted(found, key=lambda c: (c.step, c.text))]
    DATA.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


class Noting:
    """A plugin of pytest: what tests give to passes."""

    def __init__(self) -> None:
        self.found: dict[Any, Case] = {}

    def pytest_runtestloop(self) -> None:
        original = Pass.__call__

        def noted(step: Pass, module: Any) -> Module:
            self._note(step, module)
            return original(step, module)

        Pass.__call__ = noted  # type: ignore[method-assign]

    def _note(self, step: Pass, module: Any) -> None:
        name = _name(step)
        if name is None or not isinstance(module, Module) or list(module.functions) != ["main"]:
            return
        nodes = [n for n in post_order(module.main.body) if isinstance(n, Call)]
        shape = tuple((getattr(n.op, "name", ""), tuple(isinstance(a, Constant) for a in n.args)) for n in nodes)
        config = {k: v for k, v in PassContext.current().config.items() if isinstance(v, (bool, int, str))}
        key = (name, str(config), shape)
        if nodes and len(nodes) <= FEW_CALLS and key not in self.found:
            arrays = module_constants(module)
            if sum(a.nbytes for a in arrays.values()) <= FEW_BYTES:
                kept = {n: [a.dtype.name, list(a.shape), _values(a)] for n, a in arrays.items()}
                self.found[key] = Case(name, config, _text(module), kept)


def _values(array: np.ndarray) -> Any:
    if array.size <= 8:
        return array.astype(STORED.get(array.dtype.name, array.dtype.name)).ravel().tolist()
    return None


def _name(step: Pass) -> str | None:
    if isinstance(step, RulePass) and type(step).__name__ == "RulePass":
        rules = [r for r in step.rules if isinstance(r, Rule)]
        homes = [(r.apply.__module__, r.name) for r in rules]
        known = all(m.startswith("minitvm.") and hasattr(importlib.import_module(m), n) for m, n in homes)
        return " ".join(f"{m}:{n}" for m, n in homes) if known and 0 < len(homes) <= 3 else None
    name = step.info.name
    home = PASSES.get(name)
    if name == "InferType" or home is not type(step) or not type(step).__module__.startswith("minitvm.passes"):
        return None
    try:
        made(name)
    except MiniTVMError:
        return None
    return name


def note(tests: Sequence[str]) -> list[Case]:
    import pytest

    plugin = Noting()
    options = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    pytest.main([*(tests or [str(HERE)]), *options], [plugin])
    return list(plugin.found.values())


def settled(found: Sequence[Case]) -> Iterator[Case]:
    """Those whose text can be read again, with what becomes of those near them."""
    for case in found:
        try:
            case.module  # noqa: B018  read
        except (MiniTVMError, ValueError, TypeError) as error:
            print(f"  not read: {case.step}: {error}")
            continue
        try:
            case.becomes = " ".join(case.outcomes())
            case.check_numbers()
        except Exception as error:
            print(f"  wrong: {case.step}: {type(error).__name__}: {error}\n{case.text}", flush=True)
            continue
        yield case


ENOUGH = 4
"""Cases in which a guard decides."""


def chosen(found: Sequence[Case]) -> list[Case]:
    """So many that each guard decides in ``ENOUGH`` of them, where there are."""
    decided = own_guards.in_child(lambda: _decided(found))
    assert decided is not None, "a pass dies"
    count, kept = Counter[own_guards.Guard](), list[Case]()
    for case, guards in sorted(zip(found, decided, strict=True), key=lambda pair: -len(pair[1])):
        if any(count[guard] < ENOUGH for guard in guards):
            kept.append(case)
            count.update(guards)
    return kept


def _decided(found: Sequence[Case]) -> list[set[own_guards.Guard]]:
    seen: list[set[own_guards.Guard]] = []

    def noted(path: Path, number: int, stand_in: bool, value: Any) -> Any:
        if seen and bool(value) != stand_in:
            seen[-1].add((path, number))
        return value

    own_guards.note(own_guards.files_of([]), noted)
    for case in found:
        seen.append(set())
        case.outcomes()
    return seen


def search(found: Sequence[Case], seconds: float) -> Iterator[Case]:
    """Modules that differ in one to three things from those of cases, where a guard decides that does in few others."""
    count, current, rng = Counter[own_guards.Guard](), set[own_guards.Guard](), np.random.default_rng()

    def noted(path: Path, number: int, stand_in: bool, value: Any) -> Any:
        if bool(value) != stand_in:
            current.add((path, number))
        return value

    own_guards.note(own_guards.files_of([]), noted)
    for case in found:
        current.clear()
        case.outcomes()
        count.update(current)
    end = time.process_time() + seconds
    while time.process_time() < end:
        case = found[rng.integers(len(found))]
        other = _further(case.module, int(rng.integers(1, 4)), rng)
        current.clear()
        if other is None or case.outcome(other).startswith("!") or not any(count[guard] < ENOUGH for guard in current):
            continue
        arrays = module_constants(other)
        kept = {n: [a.dtype.name, list(a.shape), _values(a)] for n, a in arrays.items()}
        count.update(current)
        yield Case(case.step, case.config, _text(other), kept)


def _further(module: Module, steps: int, rng: np.random.Generator) -> Module | None:
    for _ in range(steps):
        try:
            other = CHANGES[rng.integers(len(CHANGES))](module.main, rng)
            module = InferType()(module.with_function("main", other)) if other is not None else module
        except (MiniTVMError, ValueError, TypeError, ArithmeticError, IndexError):
            return None
    return module


def _text(module: Module) -> str:
    return re.sub(r" /\*.*?\*/", "", module.astext())


if __name__ == "__main__":
    given = sys.argv[1:]
    write(list(settled(cases())) if given == ["--again"] else chosen(list(settled(note(given)))))
