"""Random calls of every operator: awkward sizes, every dtype, attributes over their legal range, extreme values.

    case = random_case("nn.conv2d", RandomDraw(seed=7))
    expected = case.op.reference(*case.args)

A generator asks a :class:`Draw` for numbers: hypothesis, which shrinks what fails, or a random generator, for fuzzing.
``add-an-operator.md`` says how a new operator gets one.
"""

from operator_cases import elementwise, indexing, moves, norms, products, reductions, sampling, windows  # noqa: F401  (registers the generators)
from operator_cases.accuracy import Accuracy
from operator_cases.case import GENERATORS, Case, accepted_dtypes, random_case
from operator_cases.draw import Draw, HypothesisDraw, RandomDraw

__all__ = ["GENERATORS", "Accuracy", "Case", "Draw", "HypothesisDraw", "RandomDraw", "accepted_dtypes", "random_case"]
