"""Translation validation, whether a compiled model is right: ``check``; ``check_pass`` and ``check_kernel`` for parts.

    print(minitvm.lab.check("model.onnx"))

One engine: results on inputs that tell operators apart (``passes/compare.py``), held beside those of the operators'
references, which share no code with what is compiled.  ``Verify``, ``check_rewrite`` and ``check_operator`` are the
same.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from minitvm import config
from minitvm.codegen.backend import Backend
from minitvm.driver.compile import backend_for, run_passes
from minitvm.driver.kernels import KernelCompiler, Timings
from minitvm.driver.program import read_program
from minitvm.errors import ConfigError, MiniTVMError, TargetError
from minitvm.frontend import from_onnx
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Function, Module
from minitvm.ir.parser import parse_module
from minitvm.lab import bisect
from minitvm.lab.check_double import evaluated, excuse, is_far, same_in_double
from minitvm.lab.check_file import write
from minitvm.lab.check_import import Import
from minitvm.lab.check_kernels import TEAMS, KernelProof, prove_kernel
from minitvm.lab.check_models import ModelProof, Setting, overlaps, prove_model
from minitvm.lab.check_oracles import ORACLES, interpreted, oracle_of, second_opinion
from minitvm.lab.check_passes import PassProof, Pipeline, Prover, named, prove, running
from minitvm.lab.check_pieces import pieces
from minitvm.lab.check_result import Checked, Finding, Outcome
from minitvm.lab.user_files import names_of
from minitvm.passes import InferType, Pass, PassContext, Rule, RulePass, Sequential, default_pipeline, rule_pass
from minitvm.passes.compare import Comparison
from minitvm.passes.draws import Draw
from minitvm.passes.manager import closest
from minitvm.passes.pipeline import Plan
from minitvm.passes.redundancy import bind_params
from minitvm.passes.roundings import Results
from minitvm.passes.verify import arguments_for
from minitvm.runtime.cache import KernelCache
from minitvm.runtime.native import whole_teams

PARTS = ("import", "passes", "kernels", "model", "levels", "threads")
LEVELS = (0, 1, 2, 3)
REDUCTION = 45.0
"""Seconds for making one finding small."""

Source: TypeAlias = Any
"""A module, a function, a module's text, or what ``minitvm.compile`` takes: a path, bytes, an ``onnx.ModelProto``."""


def check(
    model: Source,
    params: Mapping[str, Any] | None = None,
    *,
    parts: Sequence[str] = PARTS,
    against: str = "reference",
    target: str = "llvm",
    opt_level: int = 3,
    num_threads: int = 1,
    shape_dict: Mapping[str, Sequence[int | None]] | None = None,
    value_dict: Mapping[str, Any] | None = None,
    passes: Sequence[Any] = (),
    pipeline: Sequence[Any] | Sequential | None = None,
    use: str | Path | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    reduction: float = REDUCTION,
    output: str | Path | None = None,
) -> Checked:
    """Checks that a model is compiled right: every pass, every kernel, the whole at all levels and thread counts.

    ``parts``: ``import`` (an ONNX model's operators beside another implementation), ``passes`` (the module before
    and after each), ``kernels`` (each beside its operators, on 1 to 3 threads), ``model`` (the whole, at
    ``opt_level``), ``levels`` (at all levels), ``threads`` (on 2 and 3).
    ``against`` says who knows the model's results: its operators' ``reference`` (and ONNX's own, of its import), or
    ``onnxruntime``; or the loop interpreter (``interp``).  ``passes`` and ``pipeline`` are those of
    :func:`minitvm.build`.  ``use`` is a Python file that runs first; the passes and rules that it defines are each
    tried alone on the model, as it was given and before it is cut into kernels.  What differs is traced to who did it
    and made small, for at most ``reduction`` seconds each; ``output`` is a folder for a test file of each.

    Passes, options and schedules of the current ``PassContext`` count.  Raises :class:`ConfigError` for unknown parts,
    :class:`TargetError` where there is no machine to run on.
    """
    _check_names(("parts", parts, PARTS), ("against", [against], ORACLES))
    more, plan = used(use) if use else [], Plan.of(passes, pipeline)
    oracle = oracle_of(against, model)
    module = as_module(model, params, shape_dict, value_dict, constants)
    made = Checking(module, Setting(target, opt_level, num_threads, plan), reduction, str(use) if use else "")
    made.known = interpreted(module) if against == "interp" else {}
    source = None if oracle is None else partial(Import.of, model, oracle, shape_dict, value_dict)
    return made.whole(source, parts, more, output)


def _check_names(*options: tuple[str, Sequence[str], Sequence[str]]) -> None:
    """What each is called, what is given, what there is."""
    for what, given, known in options:
        for name in [given] if isinstance(given, str) else given:
            if name not in known:
                raise ConfigError(f"{what}: there is no {name!r}", hint=closest(str(name), known))


def used(path: str | Path) -> list[Pass | Rule]:
    """Runs a Python file, which registers what it has to; its own passes (objects) and rules come back."""
    space = names_of(Path(path), "a Python file that defines passes, rules or templates", run_name="used")
    return [v for v in space.values() if _is_own(v)]


def object_of(module: str, expression: str) -> Any:
    """A pass or rule that a test file names, ``MyPass()`` of a module; :class:`ConfigError` where there is none."""
    try:
        return eval(expression, vars(importlib.import_module(module)))
    except Exception as error:  # whatever importing a user's module raises
        hint = "put the pass where the test can import it, and name its module here"
        raise ConfigError(f"{module} has no {expression}: {error}", hint=hint) from error


def _is_own(value: object) -> bool:
    """True if the file that ran has defined it: not what it imported."""
    if isinstance(value, Rule):
        return value.apply.__module__ == "used"
    return isinstance(value, Pass) and (type(value).__module__ == "used" or type(value).__name__ == "RulePass")


def as_module(
    model: Source,
    params: Mapping[str, Any] | None = None,
    shape_dict: Mapping[str, Sequence[int | None]] | None = None,
    value_dict: Mapping[str, Any] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Module:
    """The module to check, with its parameters as constants, and typed."""
    found, given = model, dict(params or {})
    if isinstance(model, str) and "def @" in model:
        found = parse_module(model, constants)
    elif not isinstance(model, (Module, Function)):
        found, given = from_onnx(model, shape_dict=shape_dict, value_dict=value_dict)
    module = Module(found) if isinstance(found, Function) else found
    return InferType()(module.with_function("main", bind_params(module.main, given)))


class Checking:
    """One check as it goes on."""

    def __init__(self, module: Module, setting: Setting, reduction: float, use: str = "") -> None:
        self.module, self.setting, self.reduction, self.use = module, setting, reduction, use
        self.backend: Backend = backend_for(setting.target, setting.threads)
        self.compiler = KernelCompiler(self.backend, KernelCache(config.cache_dir()))
        self.checked = Checked(f"{len(module.main.params)} inputs, target {setting.target}, {setting}")
        self._timed = Timings(self.checked.seconds).stage
        self.known: dict[Draw, Results] = {}
        self._guilty: set[str] = set()
        self._optimized: dict[int, Module | None] = {}

    # --- parts ---

    def whole(
        self,
        source: Callable[[], Import] | None,
        parts: Sequence[str],
        more: Sequence[Pass | Rule],
        output: str | Path | None,
    ) -> Checked:
        """All that is asked for, beginning with the import where there is something to compare that with."""
        with whole_teams(*TEAMS):
            if source is not None and "import" in parts:
                self.imported(source())
            self.run(parts, more)
        self.write(output)
        return self.checked

    def run(self, parts: Sequence[str], more: Sequence[Pass | Rule]) -> None:
        level = self.setting.level
        for step in more:
            self.user_pass(step)
        if "passes" in parts:
            self.passes(level)
        if "kernels" in parts:
            self.kernels()
        if {"model", "levels", "threads"} & set(parts):
            self.model(self.setting, "model")
        for other in LEVELS if "levels" in parts else ():
            if other != level:
                self.model(replace(self.setting, level=other), "levels")
        for threads in TEAMS if "threads" in parts else ():
            if threads != self.setting.threads:
                self.model(replace(self.setting, threads=threads), "threads")

    def imported(self, source: Import) -> None:
        """The model as it was imported, beside another implementation of ONNX."""
        what = f"beside {source.oracle.name}"
        with self._timed("import"):
            proof = source.prove(self.module)
        self.known.update(proof.expected)
        if not proof.difference:
            self.checked.agrees("import", what, proof)
            return
        other = second_opinion(source.oracle)
        if other and not (second := replace(source, oracle=other).prove(self.module)).difference and second.agreed:
            said = f"{proof.difference}; but {other.name} says as minitvm does: {second}"
            self.checked.add("import", what, Outcome.OPEN, said)
            return
        excused = self._excuse(proof)
        self.checked.differs("import", what, proof.difference, excused)
        if not excused:
            with self._timed("reduction"):
                self.checked.findings.append(source.finding(self.module, proof))

    def pipeline(self, level: int) -> Pipeline:
        return lambda module, watch: run_passes(self.backend, module, level, watch, self.setting.plan)

    def passes(self, level: int, part: str = "passes") -> None:
        """Every pass on the pieces of the model, and on the whole."""
        pipeline = self.pipeline(level)

        def repeat(proof: PassProof) -> str:
            own = [step for step in (self.setting.plan or Plan()).first if step.info.name == named(proof.place)]
            return f"check_pass(MODULE, {self.named(own[0]) if own else repr(named(proof.place))}, opt_level={level}"

        self._on_pieces(pipeline, self.module, part, repeat)
        with self._timed(part):
            self._optimized[level], prover = prove(pipeline, self.module, Prover(known_wrong=self._guilty))
        for proof in prover.proofs:
            self.add_pass(proof, pipeline, part, repeat(proof))

    def _on_pieces(
        self, pipeline: Pipeline, module: Module, part: str, repeat: Callable[[PassProof], str]
    ) -> list[PassProof]:
        proofs, wrong = list[PassProof](), set[str]()
        with self._timed(part):
            for piece in pieces(module.main):
                found = prove(pipeline, Module(piece), Prover(known_wrong=wrong | self._guilty))[1]
                proofs += found.proofs
                wrong |= {named(proof.place) for proof in found.wrong}
        for proof in proofs:
            if proof.error is not None:
                self.add_pass(proof, pipeline, part, repeat(proof))
        agreed = Counter(named(proof.place) for proof in proofs if proof.found is not None and proof.found.agreed)
        for name in agreed.keys() - wrong:
            said = f"the numbers agree in {agreed[name]} pieces that it changes"
            self.checked.add("pieces", name, Outcome.AGREES, said)
        return proofs

    def user_pass(self, given: Pass | Rule) -> None:
        """A pass of somebody's on the model as it was given, and as it is cut into kernels."""
        step = rule_pass(given, name=given.name) if isinstance(given, Rule) else given
        pipeline = running(step, self.setting.level)
        repeat = f"check_pass(MODULE, {self.named(given)}"
        found = [self.prove(pipeline, module, repeat) for module in (self.module, self._before_fusion())]
        if not any(found):
            self.unchanged(step.info.name)

    def named(self, given: Pass | Rule) -> str:
        """A pass or rule as a test file finds it."""
        if self.use:
            return f"used({self.use!r})"
        rules = given.rules if isinstance(given, RulePass) else [given] if isinstance(given, Rule) else []
        if len(rules) == 1:
            return f"object_of({rules[0].apply.__module__!r}, {rules[0].name!r})"
        maker, name = type(given), f"{type(given).__name__}()"
        return f"object_of({maker.__module__!r}, {name!r})"

    def prove(self, pipeline: Pipeline, module: Module, repeat: str) -> list[PassProof]:
        """Passes over a module, which need not be this one."""
        inside = self._on_pieces(pipeline, module, "passes", lambda proof: repeat)
        with self._timed("passes"):
            proofs = prove(pipeline, module, Prover(known_wrong=self._guilty))[1].proofs
        for proof in proofs:
            self.add_pass(proof, pipeline, "passes", repeat)
        return [*inside, *proofs]

    def unchanged(self, name: str) -> None:
        self.checked.add("passes", name, Outcome.OPEN, "it changes nothing in this model")

    def _before_fusion(self) -> Module:
        with PassContext(opt_level=self.setting.level, disabled_pass=["AlterOpLayout", "FuseOps"]):
            return default_pipeline(self.backend.machine)(self.module)

    def add_pass(self, proof: PassProof, pipeline: Pipeline, part: str, repeat: str) -> None:
        name = named(proof.place)
        if proof.error is None:
            assert proof.found is not None
            self.checked.agrees(part, name, proof.found)
            return
        excused = self._is_rounding(proof)
        self.checked.differs(part, name, proof.error.message, excused)
        if not excused and self._is_new(name):
            with self._timed("reduction"):
                finding = bisect.finding_of_pass(pipeline, proof, self.reduction)
            self._found(finding, f"{repeat}, constants=CONSTANTS)")

    def _is_rounding(self, proof: PassProof) -> str:
        if proof.found is None or proof.after is None or not proof.found.inputs:
            return ""
        if is_far(proof.before.main, proof.found):
            return ""
        given = arguments_for(proof.before.main, proof.after.main, proof.found.inputs)
        return same_in_double(proof.before.main, proof.after.main, proof.found.inputs, given)

    def kernels(self) -> None:
        optimized = self.optimized(self.setting.level)
        if optimized is None:
            self.checked.add("kernels", "all", Outcome.OPEN, "a pass raised, so there are none")
            return
        for symbol, group in read_program(optimized.main).groups.items():
            with self._timed("kernels"):
                proof = prove_kernel(symbol, group, self.compiler)
            self.add_kernel(symbol, proof)

    def optimized(self, level: int) -> Module | None:
        """The module after all passes."""
        if level not in self._optimized:
            try:
                self._optimized[level] = run_passes(self.backend, self.module, level, None, self.setting.plan)
            except MiniTVMError:
                self._optimized[level] = None
        return self._optimized[level]

    def add_kernel(self, symbol: str, proof: KernelProof | Declined) -> None:
        if isinstance(proof, Declined):
            self.checked.add("kernels", symbol, Outcome.OPEN, proof.reason)
        elif not proof.is_wrong:
            assert proof.found is not None
            self.checked.agrees("kernels", symbol, proof.found)
        else:
            self.checked.differs("kernels", symbol, f"on {proof.threads} thread(s): {proof.error}")
            if self._is_new(f"kernel {symbol}"):
                with self._timed("reduction"):
                    finding = bisect.finding_of_kernel(proof, self.compiler, self.reduction)
                how = f"target={self.setting.target!r}, threads={proof.threads}, constants=CONSTANTS"
                self._found(finding, f"check_kernel(MODULE, {how})")

    def model(self, setting: Setting, part: str) -> None:
        """The whole model: compiled, run, its memory plan looked at."""
        try:
            with self._timed(part):
                proof = prove_model(self.module, setting, self.known)
        except TargetError:
            raise
        except MiniTVMError as error:
            self.checked.differs(part, str(setting), f"it cannot be compiled: {error.message}")
            return
        shared = overlaps(proof.library.artifact.graph, proof.library.artifact.plan)
        if shared and not proof.error:
            proof.error = shared[0]
        if not proof.error:
            assert proof.found is not None
            self.checked.agrees(part, str(setting), proof.found)
            return
        excused = "" if is_far(self.module.main, proof.found) else self._excuse(proof.found)
        self.checked.differs(part, str(setting), proof.error, excused)
        if not excused:
            self._trace(proof, setting, part)

    def _excuse(self, found: Comparison | None) -> str:
        if found is None or found.draw is None:
            return ""
        exact = evaluated(self.module.main, found.inputs)
        return excuse(exact, found.expected[found.draw], found.results[found.draw])

    def _trace(self, proof: ModelProof, setting: Setting, part: str) -> None:
        """Who made a compiled model wrong: a pass, a kernel, or neither; where nobody was found before."""
        optimized = self.optimized(setting.level)
        if optimized is None or not bisect.passes_are_right(self.module, optimized, proof):
            if setting.level not in self._optimized or not self._guilty:
                self.passes(setting.level, part)
            return
        cause, _ = bisect.cause_of(self.module, proof)
        if not self._is_new(cause):
            return
        with self._timed("reduction"):
            finding = bisect.finding_of_model(self.module, proof, self.reduction)
        how = f"target={setting.target!r}, opt_level={setting.level}, num_threads={setting.threads}"
        self._found(finding, f'check(MODULE, parts=["model"], {how}, constants=CONSTANTS)')

    # --- what is found ---

    def _is_new(self, guilty: str) -> bool:
        is_new = guilty not in self._guilty
        self._guilty.add(guilty)
        return is_new

    def _found(self, finding: Finding, repeat: str) -> None:
        finding.repeat = repeat
        self.checked.findings.append(finding)

    def write(self, output: str | Path | None) -> None:
        for number, finding in enumerate(self.checked.findings if output else (), 1):
            finding.path = write(finding, Path(str(output)), number)
