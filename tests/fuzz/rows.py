"""Operators that need no function of their own: what ONNX's schemas say of them, and rows for what these leave open.

A row has the operators, from some opset on, then their operands, then what is drawn beside these:

    GroupNormalization@21 : x(n c s ...) (c)! (c)! ; g=divisor(c) num_groups=g

Letters in parentheses are sizes: those of ``x``, which is there already or new, and others; ``...`` are any further
ones of ``x``.  ``=`` has the shape of ``x``, ``~`` one that broadcasts with it.  Before a colon stand dtypes to choose
from, where no schema says them; after the shape ``[low,high]``, and ``!`` for a weight, ``#`` for a constant, ``@`` for
one quantized, with scale and zero point (``@`` alone are the result's), ``?`` for one that may be left out.  After the
semicolon stand sizes and attributes; ``a|b`` is either, with ``?`` also neither; then the result's sizes, where they
are not those of ``x``.  Attributes that a row does not name are drawn by name, those that an opset lacks are left out.
``{...}`` are the values of a constant; of several rows of an operator from one opset on each is drawn as often.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx

from tests.fuzz.case import Value, code_of
from tests.fuzz.draw import FLOATS, GENERATORS, Draw, Reject, Shape, accepted, schema_of

BYTES = ("uint8", "int8")

_ROWS = """
Dropout@12 : x float32:()[0,0.9]#? ; outputs=1|2
Dropout : x ; ratio=0.3?
BitShift : x ~[0,7] ; direction=LEFT|RIGHT
CastLike : x (a b)
SwiGLU : x =
com.microsoft.Gelu : x
com.microsoft.QuickGelu : x ; alpha=real(1.702)?
com.microsoft.BiasGelu : x(... c) (c)!
com.microsoft.FastGelu : x(... c) (c)!?
ArgMax ArgMin Softmax LogSoftmax Hardmax NonZero : x(n ...)
LpNormalization : x(n ...) ; p=1|2?
BatchNormalization : x(n c ...) (c)! (c)! (c)! (c)[0.1,3]
InstanceNormalization : x(n c s ...) (c)! (c)!
GroupNormalization@21 : x(n c s ...) (c)! (c)! ; g=divisor(c) num_groups=g
GroupNormalization : x(n c s ...) (g)! (g)! ; g=divisor(c) num_groups=g
com.microsoft.SkipLayerNormalization : float32|float32|float16:x(a b c) = (c)! (c)!? (c)!? ; epsilon=0.001?
LRN : x(n c h w) ; size=1|2|3|3|4|5|5|7 alpha=0.01|0.5|2.0? beta=0.6? bias=1.5?
SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss : x(n c ...) (n ...)[0,c-1] (c)[0.1,2]? ; outputs=1|2
 reduction=none|sum|mean? ignore_index=between(0,c)?
GlobalAveragePool GlobalMaxPool GlobalLpPool : x(n c s ...)
HannWindow HammingWindow BlackmanWindow : ()[1,100]# ; output_datatype=1|10|11?
CausalConvWithState : (b c t) (c 1 w)! (c)!? (b c w-1)? ; b=1|2|3 w=1|2|4 activation=silu? outputs=2
DepthToSpace : (n c*k*k h w) ; k=1|2|2|3 n=1|2|3 c=1|3|8 h=1|5|8 w=2|7|8 blocksize=k mode=DCR|CRD?
SpaceToDepth : (n c h*k w*k) ; k=1|2|2|3 n=1|2|3 c=1|3|8 h=1|5|8 w=2|7|8 blocksize=k
TensorScatter : x(b c s d) (b c 1 d) (b)[0,s-1] ; mode=linear|circular?
Trilu : x(... m n) ()[-6,6]#?
EyeLike : x(m n) ; dtype=code(dtype())? k=0|1|-2|9?
Flatten : x ; axis=between(-rank*(opset>10),rank)?
Shape : x ; start=between(-rank-2,rank+2)? end=between(-rank-2,rank+2)?
GridSample@20 : x(n c h w) (n a b 2)[-1.2,1.2] ; mode=linear|nearest|cubic? padding_mode=zeros|border|reflection?
GridSample : x(n c h w) (n a b 2)[-1.2,1.2] ; mode=bilinear|nearest|bicubic? padding_mode=zeros|border|reflection?
DFT : (b n c) ; b=1|2|3 c=1|2 inverse=0|1? axis=1
RoiAlign : x(n c h w) (r 4)[0,9] (r)[0,n-1] ; r=1|2|3 output_height=1|2|3 output_width=1|2|5 sampling_ratio=1|2
 mode=avg|max? coordinate_transformation_mode=half_pixel|output_half_pixel?
MaxRoiPool : x(n c h w) (r 5)[0,n-1] ; r=1|2|3 pooled_shape=[1,2]|[3,2] spatial_scale=1.0|2.0|0.5?
DeformConv : x(n c h w) (o c k k)! (n 2*k*k h-k+1 w-k+1)[-1.5,1.5] ; o=1|2|5 k=1|2|3
Pow : x ~
Pow : x ~[0,3]
Pow : x ~[0,3]
Mod : float32|float16|float64:x ~ ; fmod=1
Mod : float32|float16|float64:x ~[1,9] ; fmod=1
Mod : int64|int32|int8|uint8|uint32:x ~[1,9] ; fmod=0|1?
Range : {a} {a+s*n} {s} ; a=between(-5,5) s=1|2|3|-1|-2 n=between(0,40)
Range : float32|float64:{a/2} {(a+s*n+b)/2} {s/2} ; a=between(-5,5) s=1|2|3|-1|-2 n=between(0,40) b=-1|0|1
CenterCropPad : x(a b) {[c,d]} ; axes=None
CenterCropPad : x(a b c ...) {[d,e]} ; axes=[0,2]|[1,-1]|[2,0]
Gemm : x(m k) (k n)! (n)!? ; n=1|5|17|33|100
Gemm : x(m k) (n k)! (1 n)!? ; transB=1
Gemm : x(k m) (k n)! (m 1)!? ; transA=1
Gemm : x(k m) (n k)! (m n)!? ; transA=1 transB=1
Gemm : x(m k) (k n)! ()!?
Where : ~ x ~
Where : ~ ~ x
PRelu : x(n ...) (1)!
PRelu : x(n ...) =!
PRelu : x(n c h w) (c 1 1)!
ReverseSequence : x(a b ...) int64:(b)[a>0,a] ; time_axis=0 batch_axis=1
ReverseSequence : x(b a ...) int64:(b)[a>0,a] ; time_axis=1 batch_axis=0
RotaryEmbedding : (b h t 2*u) (t+3 u)[-1,1] (t+3 u)[-1,1] (b t)[0,t+2] ; b=1|2|3 h=1|2|3 u=1|4|8
RotaryEmbedding : (b h t 2*u) (b t u)[-1,1] (b t u)[-1,1] ; b=1|2|3 h=1|2|3 u=1|4|8
AffineGrid : (n 2 3) {[n,c,h,w]} ; n=1|2|3 c=1|3 h=1|2|5|8 w=1|3|7
AffineGrid : (n 3 4) {[n,c,e,h,w]} ; n=1|2|3 c=1|3 e=1|2|3 h=1|2|5 w=1|3|7
MatMulInteger : x(... m k) (k n)! ()[0,10]? ()[0,10]?
MatMulInteger : x(... m k) (k n)! ()[0,10]? (n)[0,10]
STFT : float32|float64:(n l+s*p 1) {s} (l)[0.1,1]? {l} ; n=1|2|3 l=4|8|9|16 s=1|3|4 p=0|1|5
 onesided=0|1?
MelWeightMatrix : {b} {l} {r} float32:{f} float32:{r/g} ; b=1|4|8 l=16|33|64 r=8000|16000 f=0|100 g=2|4
TfIdfVectorizer : int32|int64:(n)[0,3] ; a=1|2 b=a|2 min_gram_length=a max_gram_length=b max_skip_count=between(0,3)
 mode=TF|IDF|TFIDF ngram_counts=[0,3] ngram_indexes=[3,0,1,4,2] pool_int64s=[0,1,2,1,2,0,1]
 weights=[0.5,2.0,1.5,3.0,0.25]?
TfIdfVectorizer : int32|int64:(m n)[0,3] ; a=1|2 b=a|2 min_gram_length=a max_gram_length=b max_skip_count=between(0,3)
 mode=TF|IDF|TFIDF ngram_counts=[0,3] ngram_indexes=[3,0,1,4,2] pool_int64s=[0,1,2,1,2,0,1]
 weights=[0.5,2.0,1.5,3.0,0.25]?
MeanVarianceNormalization : x(n c h w) ; axes=[0,2,3]|[1]?
MeanVarianceNormalization : x(n ... c) ; axes=[0]|[-1]|[0,-1]
com.microsoft.FusedMatMul : float32|float16|float64:x(... m k) (k n) ; alpha=real(0.125)? -> ... m n
com.microsoft.FusedMatMul : float32|float16|float64:x(... m k) (n k) ; alpha=real(0.125)? transB=1 -> ... m n
com.microsoft.FusedMatMul : float32|float16|float64:x(... k m) (k n) ; alpha=real(0.125)? transA=1 -> ... m n
com.microsoft.FusedMatMul : float32|float16|float64:x(... k m) (n k) ; alpha=real(0.125)? transA=1 transB=1 -> ... m n
com.microsoft.TransposeMatMul : float32:x(b m k) (b k n)! ; alpha=real(1.0)? -> b m n
com.microsoft.FusedGemm : float32:x(m k) (k n)! (n)!? ; activation=Relu|Sigmoid|Tanh -> m n
com.microsoft.FusedConv : float32:x(n c h w) (o c k k)! (o)!? ; k=1|2|3 o=1|5|8 kernel_shape=[k,k]
 activation=Relu|Sigmoid|Tanh -> n o h-k+1 w-k+1
com.microsoft.Trilu : x(... m n) int64:()[-6,6]#? ; upper=0|1?
com.microsoft.DynamicQuantizeMatMul : float32:x(m k) int8|uint8:(k n)! float32:()[0.01,0.2]# ; -> m n
com.microsoft.SkipSimplifiedLayerNormalization : float32:x(a b c) = (c)! (c)!? ; epsilon=0.001?
com.microsoft.MultiHeadAttention : float32:x(b s d) (b t d) (b t d) ; d=8|12|16 num_heads=1|2|4 scale=0.25?
ai.onnx.ml.ArrayFeatureExtractor : float32|int64|float64:x(n c) int64:(k)[0,c-1] ; k=1|2|5 -> n k
ai.onnx.ml.Binarizer : float32:x ; threshold=real(0.0)?
ai.onnx.ml.FeatureVectorizer : float32:x(n c) ; inputdimensions=[c]
ai.onnx.ml.Imputer : float32:x(n c) ; imputed_value_floats=[1.5]|[0.5]*c replaced_value_float=real(0.0)
ai.onnx.ml.LabelEncoder : int64:x ; keys_int64s=[0,1,-3] values_int64s=[5,-6,7] default_int64=between(-2,9)?
ai.onnx.ml.LinearRegressor : float32:x(n c) ; t=1|3 targets=t coefficients=[real(0.5)]*(c*t) intercepts=[0.25]*t
 post_transform=NONE|LOGISTIC|SOFTMAX? -> n t
ai.onnx.ml.Normalizer : float32:x(n c) ; norm=L1|L2|MAX
ai.onnx.ml.OneHotEncoder : float32:x(n c) ; cats_int64s=[0,1,-2] -> n c 3
ai.onnx.ml.Scaler : float32:x(n c) ; offset=[real(0.5)]*c scale=[real(2.0)]
ai.onnx.ml.SVMRegressor : float32:x(n c) ; n_supports=2 support_vectors=[0.5,-0.25]*c coefficients=[0.5,-1.0] rho=[0.1]
 kernel_type=RBF|LINEAR|POLY|SIGMOID kernel_params=[0.5,0.1,2.0] -> n 1
ai.onnx.ml.TreeEnsembleRegressor : float32:x(n c) ; n_targets=1 nodes_treeids=[0]*5 nodes_nodeids=[0,1,2,3,4]
 nodes_modes=["BRANCH_LT","BRANCH_GTE","LEAF","LEAF","LEAF"]|["BRANCH_EQ","BRANCH_LEQ","LEAF","LEAF","LEAF"]
 nodes_featureids=[0,c-1,0,0,0] nodes_values=[real(0.0),real(1.0),0.0,0.0,0.0] nodes_truenodeids=[1,3,0,0,0]
 nodes_falsenodeids=[2,4,0,0,0] target_treeids=[0]*3 target_nodeids=[2,3,4] target_ids=[0]*3
 target_weights=[0.5,-1.0,2.0] aggregate_function=SUM|MIN? nodes_missing_value_tracks_true=[0,1,0,0,0]? -> n 1
com.microsoft.Attention : float32:(b s d) (d 3*d)! (3*d)! int32:(b s)[0,1]? ; d=8|12|16 num_heads=1|2|4
 unidirectional=0|1? scale=0.25?
com.microsoft.EmbedLayerNormalization : int32:(b s)[0,9] int32:(b s)[0,1]? float32:(10 c)! float32:(s c)! float32:(2 c)!
 float32:(c)! float32:(c)! ; epsilon=0.001? outputs=2 -> float32:b s c, int32:b
com.microsoft.CDist : float32:(a c) float32:(b c) ; metric=euclidean|sqeuclidean -> a b
com.microsoft.ExpandDims : float32|int64|float16:(a b) int32:()[-2,-2]# ; -> a 1 b
com.microsoft.GatherBlockQuantized : uint8:(r j*8)! int64:(k)[-r,r-1] float32:(r j)[0.01,0.2]#
 uint8:(r (j+1)//2)[0,255]#? ; j=1|2|3 bits=4 block_size=16 quantize_axis=1 -> float32:k j*16
com.microsoft.GatherND : float32|int64|int32:(a a c) int64:(k 2)[-a,a-1] ; -> k c
com.microsoft.GridSample : float32:(n c h w) float32:(n a b 2)[-1.2,1.2] ; mode=bilinear|nearest?
 padding_mode=zeros|border|reflection? align_corners=0|1? -> n c a b
com.microsoft.GroupQueryAttention : float32:(b s h*g*8) (b s g*8) (b s g*8) - - int32:(b)[s-1,s-1]# int32:()[s,s]#
 ; h=1|2 g=1|2 num_heads=h*g kv_num_heads=g softcap=2.0? outputs=3 -> b s h*g*8, b g s 8, b g s 8
com.microsoft.MatMulInteger16 : int16:(m k) (k n)! ; -> int32:m n
com.microsoft.MatMulIntegerToFloat : uint8:(m k) int8|uint8:(k n)! float32:()[0.01,0.2]# float32:()[0.01,0.2]#
 uint8:()[0,20]#? ; -> float32:m n
com.microsoft.MatMulNBits : float32:(m j*16) uint8:(n j 8)! float32:(n*j)[0.01,0.2]# uint8:(n*((j+1)//2))[0,255]#?
 ; j=1|2|3 K=j*16 N=n bits=4 block_size=16 -> m n
com.microsoft.NhwcMaxPool : uint8|int8:(n h w c) ; h=2|5|8 w=4|7 kernel_shape=[2,3] -> n h-1 w-2 c
com.microsoft.Pad : float32:(a b) int64:(4)[1,1]# ()? ; -> a+2 b+2
com.microsoft.QAttention : uint8:(b s d) int8:(d 3*d)! float32:(3*d)! float32:()[0.01,0.02]# float32:()[0.01,0.02]#
 ; d=8|12|16 num_heads=1|2|4 unidirectional=0|1? -> float32:b s d
com.microsoft.QLinearConv : uint8:(n h w c)@ int8:(o c 1 1)!@ @ ; channels_last=1 -> n h w o
com.microsoft.RotaryEmbedding : float32:(b s h*8) int64:(b s)[0,9] float32:(10 4)! float32:(10 4)! ; h=1|2
 interleaved=0|1?
com.microsoft.Unique : float32:(n)[0,3] ; outputs=3 -> ?, int64:n, int64:?
com.microsoft.QLinearAdd com.microsoft.QLinearMul : x@ ~@ @
com.microsoft.QLinearLeakyRelu : x(n ...)@ @ ; alpha=real(0.1)?
com.microsoft.QLinearSigmoid : x(n ...)@ @
com.microsoft.QLinearSoftmax : x(n ...)@ @ ; axis=axis(rank) opset=9|13
com.microsoft.QLinearGlobalAveragePool : x(n c h w)@ @ ; -> n c 1 1
com.microsoft.QLinearWhere : bool:= x@ =@ @
com.microsoft.DequantizeLinear : x@ -> float32:
com.microsoft.QuantizeLinear : float32:x uint8:@ -> uint8:
com.microsoft.QuantizeLinear : float32:x int8:@ -> int8:
com.microsoft.QLinearAveragePool : uint8|int8:(n c h w)@ @ ; h=3|5|8 w=4|7|16 k=1|2|3 j=1|2|3 s=1|2 t=1|2
 kernel_shape=[k,j] strides=[s,t] -> n c (h-k)//s+1 (w-j)//t+1
com.microsoft.QLinearConcat : @ x(n ...)@ ; axis=0
com.microsoft.QLinearConcat : @ x(a n ...)@ =@ ; axis=1 -> a 2*n ...
com.microsoft.QLinearConcat : @ x(... n)@ =@ =@ ; axis=-1 -> ... 3*n
com.microsoft.QGemm : x(m k)@ (k n)!@ int32:(n)[-500,500]? @ ; transA=0 transB=0 -> m n
"""

Drawn = Callable[[Draw, Value, Any], Any]
"""An attribute or an operand beside ``x``, from what its schema says."""

_FLAGS = """align_corners count_include_pad detect_negative detect_positive exclusive interleaved keepdims
 noop_with_empty_axes periodic reverse select_last_index upper"""


_ATTRIBUTES: dict[str, Drawn] = {
    **dict.fromkeys(_FLAGS.split(), lambda d, x, a: d.choice((None, 0, 1))),
    **dict.fromkeys(("alpha", "beta", "gamma", "lambd", "bias"), lambda d, x, a: d.maybe(d.real(a.default_value.f))),
    "approximate": lambda d, x, a: d.choice(("none", "tanh", None)),
    "axes": lambda d, x, a: d.maybe(d.axes(x.rank, 1), 0.8),
    "axis": lambda d, x, a: d.maybe(d.axis(x.rank), 0.75),
    "epsilon": lambda d, x, a: d.maybe(d.choice((1e-5, 1e-3, 0.1))),
    "p": lambda d, x, a: d.choice((None, 1, 2, 3)),
    "to": lambda d, x, a: code_of(x.dtype if d.chance(0.1) else d.choice(accepted(d.op, d.opset, 0))),
}
_SECOND: dict[str, Drawn] = {
    "axes": lambda d, x, _: d.maybe(d.ints(d.axes(x.rank, 0 if d.chance(0.1) else 1)), 0.8),
    "axis": lambda d, x, _: d.constant(np.array(d.axis(x.rank), d.choice(("int64", "int32")))),
}


def has_simple_schema(name: str) -> bool:
    """Whether one tensor, two alike or any number decide all, but attributes and axes; nothing is random."""
    schema = schema_of(name, onnx.defs.onnx_opset_version())
    if schema is None or not schema.inputs or "seed" in schema.attributes:
        return False
    first, *more = schema.inputs
    if not all(any(t.startswith("tensor(") for t in value.types) for value in (*schema.inputs, *schema.outputs)):
        return False
    return not more or (len(more) == 1 and (more[0].type_str == first.type_str or more[0].name in _SECOND))


def by_schema(d: Draw) -> list[Value]:
    """A node of an operator with a simple schema.  Of two operands many are constant: what rewrites look for."""
    schema = schema_of(d.op, d.opset)
    if schema is None:
        raise Reject(f"no {d.op} in opset {d.opset}")
    (first, *more), x = schema.inputs, d.operand()
    operands: list[Value | None] = [x]
    if first.option is onnx.defs.OpSchema.FormalParameterOption.Variadic:
        operands += [d.other(x) for _ in range(d.choice((0, 1, 1, 1, 2, 5)))]
    elif more and more[0].name in _SECOND:
        operands.append(_SECOND[more[0].name](d, x, None))
    elif more:
        shape = d.partner(d.known(x))
        operands.append(d.weight(shape, x.dtype) if d.chance(0.35 + d.follows / 2) else d.like(shape, x.dtype))
        d.rng.shuffle(operands)
    return d.node(operands, schema.min_output, **_by_name(d, x, {}))


def _by_name(d: Draw, x: Value, given: dict[str, Any]) -> dict[str, Any]:
    """The attributes that the present opset has: ``given`` ones, and those that are drawn by name."""
    known = schema_of(d.op, d.opset).attributes
    drawn = {n: draw(d, x, known[n]) for n, draw in _ATTRIBUTES.items() if n in known and n not in given}
    return {**drawn, **{n: value for n, value in given.items() if n in known}}


# --- rows -----------------------------------------------------------------------------------------------------


class _Operand(NamedTuple):
    """``shape`` is ``x``, ``=``, ``~``, sizes or values, ``-`` where it is left out; empty for the result's scale and
    zero point."""

    dtypes: str
    shape: str
    range: str
    flags: str


_OPERAND = re.compile(
    r"(?:([\w|]+):)?(x?\((?:[^()]|\([^()]*(?:\([^()]*\))?[^()]*\))*\)|\{[^}]*\}|[-x=~])?(?:\[([^]]+)\])?([!#@?]*)(?:\s+|$)"
)


class _Row(NamedTuple):
    operands: list[_Operand]
    given: dict[str, str]
    result: str


def _row(text: str) -> _Row:
    operands, _, more = text.partition(";")
    given, _, result = more.partition("->")
    found = [_Operand(*parts) for parts in _OPERAND.findall(operands.strip()) if any(parts)]
    return _Row(found, dict(part.split("=", 1) for part in given.split()), result)


class _Names(dict[str, Any]):
    """What a row's expressions may use: choices, and sizes, which are drawn where they are first asked for."""

    def __init__(self, d: Draw, row: _Row) -> None:
        super().__init__(between=d.between, real=d.real, axis=d.axis, dtype=d.dtype, code=code_of, opset=d.opset)
        self["divisor"] = lambda n: d.choice([g for g in range(1, n + 1) if n % g == 0] or [1])
        self.d, self.row = d, row
        self.rest: Shape = ()

    def __missing__(self, name: str) -> Any:
        """A size; a word stands for itself."""
        if len(name) == 1:
            self[name] = self.chosen(self.row.given[name]) if name in self.row.given else self.d.size(17)
        return self.get(name, name)

    def value(self, text: str) -> Any:
        return eval(text, {}, self)

    def chosen(self, text: str) -> Any:
        options = text.rstrip("?").split("|")
        return None if text.endswith("?") and self.d.chance(0.5) else self.value(self.d.choice(options))

    def bind(self, text: str, shape: Shape) -> None:
        """The sizes of ``x``."""
        head, dots, tail = (part.split() for part in text[2:-1].partition("..."))
        end = len(shape) - len(tail)
        self.update(zip([*head, *tail], [*shape[: len(head)], *shape[end:]], strict=bool(dots)), rank=len(shape))
        self.rest = shape[len(head) : end]

    def shape(self, text: str) -> Shape:
        parts = [
            self.rest if part == "..." else (self.value(part),)
            for part in text.removeprefix("(").removesuffix(")" * text.startswith("(")).split()
        ]
        found = tuple(size for part in parts for size in part)
        if min(found, default=0) < 0:
            raise Reject("less than nothing")
        return found


class _Drawing:
    """One node of a row's operator."""

    def __init__(self, d: Draw, row: _Row) -> None:
        self.d, self.row, self.names = d, row, _Names(d, row)
        self.schema = schema_of(d.op, d.opset)
        if self.schema is None and "." not in d.op:
            raise Reject(f"no {d.op} in opset {d.opset}")
        self.kinds: dict[str, str] = {}
        """dtypes of the schema's type parameters."""
        self.x: Value | None = None

    def node(self) -> list[Value]:
        d, row, operands = self.d, self.row, dict[int, list[Value | None]]()
        for i in sorted(range(len(row.operands)), key=lambda i: not row.operands[i].shape.startswith("x")):
            operands[i] = self.operand(i, row.operands[i])
        kept = [n for n in row.given if self.schema is not None or len(n) > 1 or n.isupper()]  # else letters are sizes
        given = {n: self.names.chosen(row.given[n]) for n in kept}
        outputs, flat = given.pop("outputs", 1), [v for i in sorted(operands) for v in operands[i]]
        assert self.x is not None
        if self.schema is not None:
            return d.node(flat, outputs, **_by_name(d, self.x, given))
        return d.node(flat, outputs, [self.result(text, operands) for text in row.result.split(",")], **given)

    def result(self, text: str, operands: dict[int, list[Value | None]]) -> tuple[str, Shape | None]:
        """Of an operator without a schema; like its operands where the row does not say how."""
        dtype, _, sizes = text.strip().rpartition(":")
        assert self.x is not None
        if sizes == "?":
            return dtype or self.x.dtype, None
        parts = [p[0] for i, p in operands.items() if self.row.operands[i].shape[:1] in tuple("x=~")]
        like = [self.d.known(value) for value in parts if value is not None]
        return dtype or self.x.dtype, self.names.shape(sizes) or np.broadcast_shapes(*like or [self.d.known(self.x)])

    def operand(self, i: int, o: _Operand) -> list[Value | None]:
        """With its scale and zero point where it is quantized."""
        if o.shape == "-" or ("?" in o.flags and self.d.chance(0.5)):
            return [None]
        value = self.first(i, o) if o.shape.startswith("x") else self.other(i, o) if o.shape else None
        dtype = self.dtype(i, o) if value is None else value.dtype
        return [*([value] if o.shape else []), *(parameters(self.d, dtype) if "@" in o.flags else [])]

    def first(self, i: int, o: _Operand) -> Value:
        d, letters = self.d, o.shape[2:-1].replace("...", "").split()
        dtypes = o.dtypes.split("|") if o.dtypes else BYTES if "@" in o.flags else None if self.schema else FLOATS
        self.x = d.operand(dtypes, len(letters), 5 if "..." in o.shape or o.shape == "x" else len(letters))
        self.names.bind(o.shape if len(o.shape) > 1 else "x(...)", d.known(self.x))
        if self.schema is not None:
            self.kinds[self.schema.inputs[i].type_str] = self.x.dtype
        return self.x

    def dtype(self, i: int, o: _Operand) -> str:
        given = self.d.choice(o.dtypes.split("|")) if o.dtypes else ""
        if self.schema is None:
            return given or self.x.dtype  # type: ignore[union-attr]
        type_str = self.schema.inputs[i].type_str
        return self.kinds.setdefault(type_str, given or self.kinds.get(type_str) or self.d.dtype(i))

    def other(self, i: int, o: _Operand) -> Value:
        if o.shape.startswith("{"):
            found = self.d.constant(np.array(self.names.value(o.shape[1:-1]), self.dtype(i, o)))
            self.x = self.x or found
            return found
        d, dtype = self.d, self.dtype(i, o)
        known = () if self.x is None else d.known(self.x)
        shape = known if o.shape == "=" else d.partner(known) if o.shape == "~" else self.names.shape(o.shape)
        if o.range:
            low, high = map(self.names.value, o.range.split(","))
            found = d.within(shape, dtype, low, high, 1.0 if "#" in o.flags else 0.5)
        else:
            found = d.weight(shape, dtype) if "!" in o.flags else d.like(shape, dtype)
        self.x = self.x or found
        return found


def parameters(d: Draw, dtype: str) -> list[Value]:
    """A scale and a zero point for all of a tensor."""
    low, high = (0, 20) if dtype == "uint8" else (-10, 10)
    return [d.within((), "float32", 0.01, 0.2, 1.0), d.within((), dtype, low, high, 1.0)]


def by_row(d: Draw) -> list[Value]:
    """A node as one of the newest rows that the opset has says."""
    newest = next(since for since, _ in _BY_NAME[d.op] if since <= d.opset)
    return _Drawing(d, d.choice([row for since, row in _BY_NAME[d.op] if since == newest])).node()


_BY_NAME: dict[str, list[tuple[int, _Row]]] = {}
"""Newest first, as they stand above."""
for _line in _ROWS.strip().replace("\n ", " ").splitlines():
    _names, _, _text = _line.partition(" : ")
    for _name in _names.split():
        _op, _, _since = _name.partition("@")
        _BY_NAME.setdefault(_op, []).append((int(_since or 0), _row(_text)))
GENERATORS.update(dict.fromkeys(_BY_NAME, by_row))
