"""Who is wrong: from a difference to the pass and the application of a rule, or to the kernel, memory or threads.

A check that meets a difference asks here.  What is found is made small (``minify``) with the question itself as judge:
the smaller function has to differ by the same pass, the same rule, or as one kernel.
"""

from __future__ import annotations

from dataclasses import replace

from minitvm.driver.kernels import KernelCompiler
from minitvm.errors import MiniTVMError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Function, Module
from minitvm.lab.check_kernels import KernelProof, maker_of, prove_kernel
from minitvm.lab.check_models import ModelProof, first_wrong_step, overlaps, prove_model
from minitvm.lab.check_passes import PassProof, Pipeline, named, proof_of
from minitvm.lab.check_result import Finding
from minitvm.lab.minify import minify
from minitvm.passes.compare import close
from minitvm.passes.draws import Draw
from minitvm.passes.roundings import flatten
from minitvm.passes.rule import Application, applications
from minitvm.passes.verify import arguments_for

# --- passes ---------------------------------------------------------------------------------------------------


def wrong_application(pipeline: Pipeline, module: Module, place: str, draw: Draw | None) -> Application | None:
    """The first replacement of a rule after which a pass is wrong; ``None`` where none is why."""
    draws = [draw] if draw else None

    def is_wrong(most: int | None) -> tuple[bool, list[Application]]:
        with applications(most) as counted:
            found = proof_of(pipeline, module, place, draws)
        return found is not None, counted.made

    wrong, made = is_wrong(None)
    if not wrong or not made or is_wrong(0)[0]:
        return None
    right, least = 0, len(made)
    while least - right > 1:
        middle = (right + least) // 2
        right, least = (right, middle) if is_wrong(middle)[0] else (middle, least)
    return made[least - 1]


def finding_of_pass(pipeline: Pipeline, proof: PassProof, seconds: float) -> Finding:
    """A pass that is wrong: which of its rules, and the smallest module on which it is."""
    assert proof.error is not None
    place, kind = named(proof.place), proof.kind
    there = wrong_application(pipeline, proof.before, place, proof.draw) if kind == "differs" else None
    rule = there.rule if there else ""

    def judge(candidate: Function) -> PassProof | None:
        found = proof_of(pipeline, Module(candidate), place, [proof.draw] if proof.draw else None)
        if found is None or found.kind != kind:
            return None
        if rule:
            blamed = wrong_application(pipeline, Module(candidate), place, found.draw)
            return found if blamed is not None and blamed.rule == rule else None
        return found

    small, found = minify(proof.before.main, proof, judge, seconds)
    error = found.error or proof.error
    guilty = f"pass {place}" + (f", {there}" if there else "")
    return Finding("passes", guilty, error.message, Module(small), notes=tuple(error.where))


# --- kernels --------------------------------------------------------------------------------------------------


def finding_of_kernel(proof: KernelProof, compiler: KernelCompiler, seconds: float) -> Finding:
    """A kernel that is wrong: who wrote its loops, and the smallest group on which they are."""
    teams = (proof.threads,)

    def judge(candidate: Function) -> KernelProof | None:
        group = Function(candidate.params, candidate.body, {**proof.group.attrs, "primitive": 1})
        found = prove_kernel(proof.symbol, group, compiler, teams, proof.draw)
        return found if isinstance(found, KernelProof) and found.is_wrong == proof.is_wrong else None

    small, found = minify(proof.group, proof, judge, seconds)
    on = f" on {found.threads} threads, which race" if found.threads > 1 else ""
    guilty = f"kernel {proof.symbol} ({maker_of(replace(found, group=small), compiler)}){on}"
    return Finding("kernels", guilty, found.error, Module(Function(small.params, small.body)))


# --- models ---------------------------------------------------------------------------------------------------


def finding_of_model(module: Module, proof: ModelProof, seconds: float) -> Finding:
    """A compiled model that is wrong where its passes are right: by a kernel, the memory plan, threads, or whatever."""
    guilty, note = cause_of(module, proof)
    setting, draw = proof.setting, proof.found.draw if proof.found else None

    def judge(candidate: Function) -> ModelProof | None:
        found = prove_model(Module(candidate), setting, {}, draw)
        if not found.error or found.error.startswith("it raises") != proof.error.startswith("it raises"):
            return None
        return found if cause_of(Module(candidate), found)[0] == guilty else None

    small, found = minify(module.main, proof, judge, seconds)
    return Finding("model", f"{guilty} at {setting}", found.error, Module(small), notes=(note,) if note else ())


def cause_of(module: Module, proof: ModelProof) -> tuple[str, str]:
    """The stage that is wrong, and what is known of it."""
    artifact = proof.library.artifact
    shared = overlaps(artifact.graph, artifact.plan)
    if shared:
        return "the memory plan", shared[0]
    if not proof.inputs:
        return "the executor", ""
    step = first_wrong_step(module, proof.library, proof.setting, proof.inputs)
    if step is not None and step.kind == "memory":
        return "the memory plan, or a kernel that writes outside of its result", step.message
    if step is not None:
        return f"kernel {step.symbol}", step.message
    if proof.setting.threads > 1:
        alone = replace(proof.setting, threads=1)
        right = prove_model(module, alone, {}, proof.found.draw if proof.found else None)
        if not right.error:
            return f"{proof.setting.threads} threads, which race", "on one thread it is right"
    return "the executor", "every kernel is right over the values that it gets"


def passes_are_right(module: Module, optimized: Module, proof: ModelProof) -> bool:
    """True if the module after all passes, through the operators' references, has the results of the one before."""
    if not proof.inputs:
        return True
    try:
        given = arguments_for(module.main, optimized.main, proof.inputs)
        found, expected = flatten(evaluate(optimized, *given)), flatten(evaluate(module, *proof.inputs))
    except MiniTVMError:
        return False
    return all(map(close, found, expected))
