"""Grades chapter 4: folding constants, a batch norm by hand, and scales into the weights of convolutions."""

from functools import partial
from typing import Any

import numpy as np

from minitvm.ir import builder as relay
from minitvm.ir.decision import Exactness
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Module
from minitvm.ir.visitor import calls
from minitvm.lab.course.check import Chapter, Wrong, as_rule, becomes, close, folded, hinted, same, stays
from minitvm.lab.course.texts import Given, Noise, fused, operators, reference_fold_scale
from minitvm.lab.course.texts import over as over_any
from minitvm.passes.redundancy import FoldConstant
from minitvm.testing.checks import as_module, run_opt_pass

CHAPTER = Chapter("chapter4", "Constant folding and scale folding")

# --- 4.1 ------------------------------------------------------------------------------------------------------

fold = CHAPTER.exercise("fold_constants", "4.1", forbids=("passes/redundancy.py",))
over = partial(over_any, shape="(3,)")


@fold.check("a call over constants becomes a constant")
def _(fold_constants: Any) -> None:
    becomes(Given(fold_constants), over("add(%x, multiply(2f, 3f))"), over("add(%x, 6f)"))


@fold.check("and so does what stands on it, in one go")
def _(fold_constants: Any) -> None:
    hint = "rewrite gives the operands first: look at new.args, which are constants by then"
    source = over("add(%x, negative(sqrt(add(const([1, 4, 9], float32), const([3, 5, 7], float32)))))")
    becomes(Given(fold_constants), source, over("add(%x, const([-2, -3, -4], float32))"), hint)


@fold.check("what reads an input stays")
def _(fold_constants: Any) -> None:
    stays(Given(fold_constants), over("multiply(add(%x, 1f), 2f)"), "fold where all operands are constants, not any")


@fold.check("fills, random numbers and tuples stay")
def _(fold_constants: Any) -> None:
    hint = "zeros has no operands: folded, a file holds a million zeros in place of a word"
    stays(Given(fold_constants), over('add(%x, zeros(shape=[3], dtype="float32"))'), hint)
    hint = "split's result is a tuple of arrays, which is no Constant"
    stays(
        Given(fold_constants), over("add(%x, split(const([1, 2, 3, 4, 5, 6], float32), indices_or_sections=2).0)"), hint
    )
    x = relay.var("x", shape=(3,))
    noise = Module.from_expr(relay.add(x, Call(Noise(), [relay.const(np.ones(3, "float32"))])))
    if len(calls(run_opt_pass(noise, Given(fold_constants)).main)) != 2:
        raise Wrong("a random operator's call was folded", "what is random is so in every run: ask op.stateful")


@fold.check("calls of groups stay")
def _(fold_constants: Any) -> None:
    stays(Given(fold_constants), fused(over("add(exp(%x), 1f)")), "a group's op is a Function, which has no reference")


@fold.check("dtypes stay what they were")
def _(fold_constants: Any) -> None:
    source = "def @main(%x: Tensor[(2,), float16]) { add(%x, multiply(const([2, 3], float16), 2f16)) }"
    after = "def @main(%x: Tensor[(2,), float16]) { add(%x, const([4, 6], float16)) }"
    becomes(Given(fold_constants), source, after)


# --- 4.2 ------------------------------------------------------------------------------------------------------

norm = CHAPTER.exercise("fold_batch_norm", "4.2", forbids=("passes/fold_scale_axis.py", "passes/canonicalize.py"))


def _normalised(fold_batch_norm: Any, epsilon: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The folded and the plain network's results."""
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(size=(1, 3, 6, 6)).astype("float32"), rng.normal(size=(4, 3, 3, 3)).astype("float32")
    gamma, beta, mean = (rng.normal(size=4).astype("float32") for _ in range(3))
    var = rng.uniform(0.0, 2, size=4).astype("float32")
    conv = relay.nn.conv2d(relay.const(x), relay.const(weight))
    plain = relay.nn.batch_norm(conv, *map(relay.const, (gamma, beta, mean, var)), epsilon=epsilon)[0]
    made = fold_batch_norm(weight.copy(), gamma, beta, mean, var, epsilon)
    if not isinstance(made, tuple) or len(made) != 2:
        raise Wrong(f"it returned {type(made).__name__}", "return the new weight and the bias")
    new, bias = made
    same(np.shape(new), weight.shape, "the new weight's shape")
    same(np.shape(bias), (4,), "the bias's shape")
    if np.asarray(new).dtype != np.float32:
        raise Wrong(f"the new weight is {np.asarray(new).dtype}, it was float32", "numpy widens: .astype(weight.dtype)")
    folded = relay.nn.bias_add(
        relay.nn.conv2d(relay.const(x), relay.const(new)), relay.const(np.asarray(bias, "float32"))
    )
    return evaluate(relay.function(folded)), evaluate(relay.function(plain))


@norm.check("the folded convolution computes what the normalised one does", points=2)
def _(fold_batch_norm: Any) -> None:
    hint = "(y - mean) * gamma / sqrt(var + epsilon) + beta is y * s + (beta - mean * s); s is for axis 0 of the weight"
    for seed in range(3):
        close(*_normalised(fold_batch_norm, 1e-5, seed), "result", hint)


@norm.check("with a large epsilon, too")
def _(fold_batch_norm: Any) -> None:
    hint = "epsilon is added to the variance, below the root"
    close(*_normalised(fold_batch_norm, 0.5), "result with epsilon 0.5", hint)


# --- 4.3 ------------------------------------------------------------------------------------------------------

_ANSWER = ("passes/fold_scale_axis.py", "passes/simplify_expr.py")
scale = CHAPTER.exercise("fold_scale", "4.3", forbids=_ANSWER, is_rule=True)

_W = "const([[[[1]], [[2]]], [[[3]], [[-4]]], [[[5]], [[6]]]], float32)"
"""Three filters of two channels, 1 x 1."""


def conv(body: str, more: str = "") -> str:
    return f"def @main(%x: Tensor[(1, 2, 4, 3), float32]) {{ %0 = nn.conv2d(%x, {_W}{more}); {body} }}"


def _one_conv(rule: Any, body: str, hint: str, more: str = "") -> None:
    given = as_module(conv(body, more))
    with hinted(hint):
        found = run_opt_pass(given, folded(rule))
    ops = operators(found)
    if ops != ["nn.conv2d"]:
        raise Wrong(f"{body} leaves {', '.join(ops)}, expected nn.conv2d alone", hint)
    x = np.random.default_rng(4).normal(size=(1, 2, 4, 3)).astype("float32")
    close(evaluate(found, x), evaluate(given, x), f"the value of {body}", hint)


@scale.check("a number goes into the weight")
def _(rule: Any) -> None:
    _one_conv(rule, "multiply(%0, 2f)", "return a conv2d over x and a new constant; w.value * c.value")


@scale.check("one number for each channel of the result does, too")
def _(rule: Any) -> None:
    hint = "channel o of the result is made with w[o]: (3, 1, 1) beside the data is (3, 1, 1, 1) beside the weight"
    _one_conv(rule, "multiply(%0, const([[[2]], [[3]], [[5]]], float32))", hint)


@scale.check("the convolution keeps its strides and padding")
def _(rule: Any) -> None:
    hint = "make the new call with the old operator: Call(conv.op, [x, new_weight])"
    _one_conv(rule, "multiply(%0, 2f)", hint, ", strides=[2, 1], padding=[1, 1, 0, 0]")


@scale.check("what varies along rows, columns or images stays")
def _(rule: Any) -> None:
    hint = "only a factor of a channel is the same for all that its filter makes: look at the constant's shape"
    stays(rule, conv("multiply(%0, const([2, 3, 5], float32))"), hint)
    stays(rule, conv("multiply(%0, const([[2], [3], [5], [7]], float32))"), hint)
    larger = conv("multiply(%0, const([[[[2]]], [[[3]]]], float32))")
    stays(rule, larger, "two images of constants make two of one: name the whole call and compare its type with conv's")


@scale.check("a convolution that somebody else reads stays")
def _(rule: Any) -> None:
    stays(rule, conv("(multiply(%0, 2f), %0)"), "single_use=True, else it is computed twice, with two weights")


_LYING = """
def @main(%x: Tensor[(1, 3, 3, 3), float32]) {
  multiply(nn.conv2d(%x, const(VALUES, float32), LAYOUTS), const([[[2]], [[3]], [[5]]], float32))
}
"""
"""As many rows as channels: a factor of shape (3, 1, 1) fits both."""


@scale.check("other layouts, where rows may be as many as channels")
def _(rule: Any) -> None:
    rng = np.random.default_rng(5)
    weight = str(rng.integers(-4, 5, (3, 3, 3, 3)).tolist())
    hint = "factors of shape (o, 1, 1) are for channels in NCHW, filters are the weight's axis 0 in OIHW: ask conv.op"
    for data, kernel in (("NHWC", "OIHW"), ("NCHW", "HWIO")):
        layouts = f'padding=[1, 1, 1, 1], data_layout="{data}", kernel_layout="{kernel}"'
        given = as_module(_LYING.replace("VALUES", weight).replace("LAYOUTS", layouts))
        x = rng.normal(size=(1, 3, 3, 3)).astype("float32")
        with hinted(hint):
            found = run_opt_pass(given, rule)
        close(evaluate(found, x), evaluate(given, x), f"the value with {data} and {kernel}", hint)


@scale.check("it says that roundings change")
def _(rule: Any) -> None:
    if rule.exactness is not Exactness.REASSOCIATING:
        raise Wrong(f'its exactness is "{rule.exactness.value}"', "a sum of scaled products is rounded elsewhere")


# --- 4.4 ------------------------------------------------------------------------------------------------------

before_relu = CHAPTER.exercise("scale_before_relu", "4.4", forbids=_ANSWER, is_rule=True)


@before_relu.check("a positive factor moves before the rectifier")
def _(rule: Any) -> None:
    becomes(rule, over("multiply(nn.relu(%x), 2f)"), over("nn.relu(multiply(%x, 2f))"))
    after = over("nn.relu(multiply(%x, const([1, 2, 3], float32)))")
    becomes(rule, over("multiply(nn.relu(%x), const([1, 2, 3], float32))"), after)


@before_relu.check("a negative factor, 0, infinity and NaN stay")
def _(rule: Any) -> None:
    hint = "max(x, 0) * c and max(x * c, 0) differ for c < 0; chapter 3 has the counterexample"
    stays(rule, over("multiply(nn.relu(%x), -2f)"), hint)
    stays(rule, over("multiply(nn.relu(%x), const([1, -2, 3], float32))"), "all factors have to be positive: np.all")
    stays(rule, over("multiply(nn.relu(%x), inff)"), "0 * infinity is NaN: relu(-1) * inf is NaN, relu(-1 * inf) is 0")


@before_relu.check("with 4.3 a scale behind a rectifier ends in the weight", points=2)
def _(rule: Any) -> None:
    both = [as_rule("scale_before_relu", rule), reference_fold_scale]
    given = as_module(conv("multiply(nn.relu(%0), 3f)"))
    ops = operators(FoldConstant()(run_opt_pass(given, both)))
    same(ops, ["nn.conv2d", "nn.relu"], "operators of multiply(nn.relu(conv), 3) after both rules")
