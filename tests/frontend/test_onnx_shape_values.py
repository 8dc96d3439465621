"""Values that follow from the inputs' sizes: what a graph computes of shapes is known as dimensions, for all sizes."""

import random
import re

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, parser

import minitvm
from minitvm.errors import InputError
from minitvm.frontend import from_onnx
from minitvm.frontend.onnx.shape_values import shape_value
from minitvm.ir.dims import Fact, assumptions, deciding, number

_BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Div", "Mod")
_COMPARED = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


def _drawn(rng: random.Random) -> str:
    """A graph that computes with the two sizes of its input, in vectors of two numbers."""
    lines = ["v0 = Shape (x)", "v1 = Identity (k)"]
    values = ["v0", "v1"]
    for n in range(2, 2 + rng.randint(1, 7)):
        a, b, own = rng.choice(values), rng.choice(values), f"v{n}"
        kind = rng.randrange(9)
        if kind < 3:
            op = rng.choice(_BINARY)
            lines.append(f"{own} = {op} ({a}, {'k' if op in ('Div', 'Mod') else b})")
        elif kind == 3:
            lines.append(f"c{n} = {rng.choice(_COMPARED)} ({a}, {b}) {own} = Where (c{n}, {b}, {a})")
        elif kind == 4:
            lines.append(f"p{n}, q{n} = Split <num_outputs = 2> ({a}) {own} = Concat <axis = 0> (q{n}, p{n})")
        elif kind == 5:
            lines.append(
                f"g{n} = Gather (v0, zero) u{n} = Unsqueeze (g{n}, axis) {own} = Concat <axis = 0> (u{n}, u{n})"
            )
        elif kind == 6:
            lines.append(f"r{n} = ReduceProd <keepdims = 0> ({a}, axis) {own} = Expand (r{n}, two)")
        elif kind == 7:
            lines.append(
                f"f{n} = Cast <to = 1> ({a}) h{n} = Mul (f{n}, half) o{n} = Floor (h{n}) {own} = Cast <to = 7> (o{n})"
            )
        else:
            lines.append(f"i{n} = Cast <to = 6> ({a}) s{n} = Slice (i{n}, axis, two) {own} = Cast <to = 7> (s{n})")
        values.append(own)
    lines.append(f"y = Identity ({values[-1]})")
    consts = "<int64[2] k = {3, 2}, int64 zero = {0}, int64[1] axis = {0}, int64[1] two = {2}, float half = {0.5}>"
    return f"g (float[n, m] x) => (int64[2] y) {consts} {{ {' '.join(lines)} }}"


def _model(text: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')


def test_what_graphs_compute_of_sizes() -> None:
    """Of any graph the value is known, and is ONNX Runtime's wherever what was taken for granted holds."""
    held = 0
    for seed in range(60):
        rng = random.Random(seed)
        model = _model(_drawn(rng))
        runtime = onnxruntime.InferenceSession(model.SerializeToString())
        with assumptions({"n": 5, "m": 4}) as facts, deciding():
            module, params = from_onnx(model, shape_dict={"x": ("n", "m")})
            value = shape_value(module.main.body, {p: params[p.name] for p in module.main.params if p.name in params})
        assert value is not None, (seed, model.graph)
        for n, m in ((5, 4), (2, 9), (7, 1), (6, 6), (0, 3), (16, 5)):
            sizes = {"n": n, "m": m}
            if all(fact.holds(sizes) for fact in facts):
                held += 1
                [want] = runtime.run(None, {"x": np.zeros((n, m), np.float32)})
                assert [_number(d, sizes) for d in value] == want.tolist(), (seed, n, m, list(map(str, value)))
    assert held > 150


def _number(dim: object, sizes: dict[str, int]) -> int:
    """A value that may be below 0."""
    return number(dim + 10**9, sizes) - 10**9  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        pytest.param(
            """(float[b, s, 8] x) => (y) <int64[1] z = {0}, int64[1] o = {1}, int64[1] m = {-1}>
            { s = Shape (x) n = Shape (s) on = ConstantOfShape <value = int64[1] {1}> (n) mm = Mul (on, m)
              e = Equal (s, mm) w = Where (e, on, s) u = Slice (x, z, o, z) y = Expand (u, w) }""",
            [(2, 3), (4, 3), (2, 7)],
            id="expand",
        ),
        pytest.param(
            """(float[b, s, 8] x) => (y) <int64[1] o = {1}, int64[1] z = {0}>
            { a = Shape <start = 0, end = 1> (x) t = Concat <axis = 0> (a, o, o) u = Slice (x, z, o, z)
              y = Tile (u, t) }""",
            [(2, 3), (4, 3), (1, 5)],
            id="tile",
        ),
        pytest.param(
            """(float[b, s, 8] x) => (y) <int64[1] w = {4}, int64[1] z = {0}>
            { b = Shape <start = 1, end = 2> (x) n = Neg (b) r = Mod (n, w) o = Mul (r, z)
              p = Concat <axis = 0> (o, o, o, o, r, o) y = Pad (x, p) }""",
            [(2, 3), (4, 4), (1, 5)],
            id="pad to a multiple",
        ),
        pytest.param(
            """(float[b, s, 4, 4] x) => (y) <float[4] scales = {1, 1, 2, 2}>
            { y = Resize <mode = "linear"> (x, "", scales) }""",
            [(2, 3), (4, 3), (1, 3)],
            id="resize by scales",
        ),
        pytest.param(
            """(float[b, s, 4, 4] x) => (y) <float[0] none = {}, int64[2] more = {5, 3}>
            { t = Transpose <perm = [2, 3, 0, 1]> (x) r = Shape <start = 0, end = 2> (t) a = Shape <start = 2> (t)
              m = Add (a, more) n = Concat <axis = 0> (r, m)
              y = Resize <mode = "cubic", cubic_coeff_a = -0.5> (t, "", none, n) }""",
            [(2, 3), (4, 3), (1, 7)],
            id="cubic resize to sizes",
        ),
    ],
)
def test_one_library_serves_what_computes_its_shapes(text: str, shapes: list[tuple[int, int]]) -> None:
    model = _model(f"g {text}")
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    rest = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][2:]
    for shape in shapes:
        x = np.random.default_rng(0).standard_normal((*shape, *rest)).astype(np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], runtime.run(None, {"x": x})[0], rtol=1e-4)
    assert session.symbolic is not None and session.symbolic.taken and not session.host_calls


def test_what_sizes_decide_is_a_fact_of_a_library() -> None:
    """A condition on sizes is answered as the run at hand has it; sizes that answer otherwise get another library."""
    model = _model(
        """g (float[n] x) => (y) <int64[1] four = {4}, int64[1] one = {1}>
        { s = Shape (x) c = Less (s, four) w = Where (c, one, s) y = Expand (x, w) z = Abs (y) }"""
    )
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    for n in (2, 3, 5, 9, 1, 7, 0):
        x = np.arange(n, dtype=np.float32)
        assert session.run(None, {"x": x})[0].tolist() == runtime.run(None, {"x": x})[0].tolist()
    assert str(session.symbolic) == "kernels for all shapes: session: compiled 2 times, for what sizes decide"
    assert [{str(f) for f in lib.artifact.assumed} for lib in session.libraries] == [{"n < 4"}, {"4 < n + 1"}]


def test_facts_of_a_library_survive_its_file(tmp_path: object) -> None:
    model = _model("""g (float[n] x, float[m] z) => (y) { y = Add (x, z) }""")
    session = minitvm.InferenceSession(model)
    x = np.ones(3, np.float32)
    session.run(None, {"x": x, "z": x})
    path = f"{tmp_path}/library.mtvm"
    session.save(path)
    loaded = minitvm.load(path)
    assert [str(f) for f in loaded.artifact.assumed] == ["n == m"]
    assert all(isinstance(f, Fact) for f in loaded.artifact.assumed)
    with pytest.raises(InputError, match="does not hold for"):
        loaded.run({"x": x, "z": np.ones(4, np.float32)})


def test_grouped_queries_compile_once_for_prompts_and_steps() -> None:
    """As onnxruntime-genai's builder writes it: the total length is the mask's."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[b, s, 32] q, float[b, s, 16] k, float[b, s, 16] v, float[b, 2, p, 8] pk, float[b, 2, p, 8] pv,
           int64[b, t] mask) => (y, nk, nv) <int64[1] one = {1}, int64 i1 = {1}, int64[1] ax = {1}>
        { r = ReduceSum <keepdims = 0> (mask, ax) d = Sub (r, one) sl = Cast <to = 6> (d) sh = Shape (mask)
          n = Gather <axis = 0> (sh, i1) tl = Cast <to = 6> (n)
          y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, pk, pv, sl, tl) }"""
    )
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    for past, length in ((0, 9), (9, 1), (10, 1), (0, 4), (4, 3), (30, 1)):
        shapes = {"q": (1, length, 32), "k": (1, length, 16), "v": (1, length, 16)}
        shapes |= {"pk": (1, 2, past, 8), "pv": (1, 2, past, 8)}
        feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        feed["mask"] = np.ones((1, past + length), np.int64)
        for found, want in zip(session.run(None, feed), runtime.run(None, feed), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    assert len(session.libraries) == 1 and not session.host_calls


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("y, i = TopK <axis = 1> (x, k)", "<int64[1] k = {3}>"),
        ("y, i = TopK <axis = 2, largest = 0> (x, k)", "<int64[1] k = {2}>"),
        ('i = Cast <to = 7> (x) y = ScatterElements <axis = 1, reduction = "add"> (x, z, x)', ""),
        ("y = ScatterND (x, k, u)", "<int64[1, 1] k = {0}>"),
        ("y = ArgMax <axis = 1> (x)", ""),
        ("y = Softmax <axis = 1> (x)", ""),
        ("y = LpNormalization <axis = 1> (x)", ""),
        ("y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, l)", ""),
        ("y = Trilu (x)", ""),
        ("y = GatherElements <axis = 1> (x, z)", ""),
        ("y = OneHot <axis = 1> (z, k, v)", "<int64 k = {3}, float[2] v = {0, 1}>"),
    ],
    ids=lambda text: text.split("=")[1].split("(")[0].split("<")[0].strip() if "=" in text else "",
)
def test_operators_over_open_sizes(text: str, others: str) -> None:
    """As ONNX Runtime, by one library; along the open axes, too."""
    inputs = {"x": "float[b, s, 6] x", "z": "int64[b, s, 6] z", "u": "float[one, s, 6] u", "l": "int64[b] l"}
    named = [declared for name, declared in inputs.items() if re.search(rf"\b{name}\b", text.split("=", 1)[1])]
    model = _model(f"g ({', '.join(named)}) => (y) {others} {{ {text} }}")
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(2)
    for b, s in ((2, 5), (3, 9), (1, 4)):
        given = {"x": rng.standard_normal((b, s, 6)).astype(np.float32), "z": rng.integers(0, 3, (b, s, 6))}
        given |= {"u": np.ones((1, s, 6), np.float32), "l": rng.integers(1, s + 1, b)}
        feed = {i.name: given[i.name] for i in session.get_inputs()}
        for found, want in zip(session.run(None, feed), runtime.run(None, feed), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    assert len(session.libraries) == 1 and session.symbolic is not None and session.symbolic.taken
