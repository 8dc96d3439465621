"""The laboratory: look at what the compiler did, ask why, time it, prove it right.  Functions of what the other rooms
keep.

minitvm.lab.explain(library, kernel="fused_nn_dense_add")
minitvm.lab.check("model.onnx")
minitvm.lab.profile("model.onnx", shape_dict={"data": (1, 3, 224, 224)})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitvm.lab.bars import progress as progress
    from minitvm.lab.check_all import check as check
    from minitvm.lab.check_all import object_of as object_of
    from minitvm.lab.check_all import used as used
    from minitvm.lab.check_one import check_kernel as check_kernel
    from minitvm.lab.check_one import check_operator as check_operator
    from minitvm.lab.check_one import check_pass as check_pass
    from minitvm.lab.check_result import Checked as Checked
    from minitvm.lab.check_result import Finding as Finding
    from minitvm.lab.differences import difference as difference
    from minitvm.lab.explanation import Explanation as Explanation
    from minitvm.lab.explanation import explain as explain
    from minitvm.lab.grouping import primitive_functions as primitive_functions
    from minitvm.lab.mutation import Mutation as Mutation
    from minitvm.lab.mutation import mutate as mutate
    from minitvm.lab.ordering import Experiment as Experiment
    from minitvm.lab.ordering import levels as levels
    from minitvm.lab.ordering import orders as orders
    from minitvm.lab.overriding import Changed as Changed
    from minitvm.lab.overriding import Override as Override
    from minitvm.lab.overriding import measure_override as measure_override
    from minitvm.lab.overriding import override as override
    from minitvm.lab.profiling import Profile as Profile
    from minitvm.lab.profiling import profile as profile
    from minitvm.lab.records import features as features
    from minitvm.lab.rule_check import Counterexample as Counterexample
    from minitvm.lab.rule_check import Verdict as Verdict
    from minitvm.lab.rule_check import verify_rule as verify_rule
    from minitvm.lab.sweeping import sweep as sweep
    from minitvm.lab.terms import Term as Term
    from minitvm.lab.terms import expression_of as expression_of
    from minitvm.lab.terms import module_of as module_of

_OFFERED = {
    "check_all": "check object_of used",
    "check_one": "check_kernel check_operator check_pass",
    "check_result": "Checked Finding",
    "grouping": "primitive_functions",
    "mutation": "Mutation mutate",
    "ordering": "Experiment levels orders",
    "overriding": "Changed Override measure_override override",
    "differences": "difference",
    "explanation": "Explanation explain",
    "profiling": "Profile profile",
    "records": "features",
    "rule_check": "Counterexample Verdict verify_rule",
    "sweeping": "sweep",
    "terms": "Term expression_of module_of",
    "bars": "progress",
}
"""Names by the module here that has them; what is not used is not imported."""
_PLACES = {name: home for home, names in _OFFERED.items() for name in names.split()}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"minitvm.lab has no attribute {name!r}")
    return getattr(importlib.import_module(f"minitvm.lab.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
