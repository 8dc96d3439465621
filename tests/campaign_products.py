"""Matrix products of random sizes, many more than the tests have time for.

    python tests/campaign_products.py --count 20000 --seed 1

Each case is an operator, sizes, layouts, a vector width and a number of threads.  Its kernel comes from the template,
and every store of it is counted from the indices: exactly one for each element.  Every Nth (``--native N``) also runs
as machine code over poisoned memory on that many threads, and the result is compared with float64.  LLVM's passes are
left out there (they are not what is looked at), which is several times faster; ``--optimized N`` takes every Nth of
these with them.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent / "codegen"))

import native_kernel
from store_counts import store_counts
from test_products import THREADS, WIDTHS, product_kernel

from minitvm.codegen.llvm import compile as llvm_compile
from minitvm.codegen.llvm.compile import Cpu, compile_object, llvm
from minitvm.target import MachineModel


@dataclass(frozen=True)
class Case:
    op: str
    shapes: tuple[tuple[int, ...], ...]
    machine: MachineModel
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        machine = f"{self.machine.vector_bytes} bytes, {self.machine.threads} threads"
        return f"{self.op} {' '.join(map(str, self.shapes))} {self.attributes} on {machine}"


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rows, columns, depth = (int(rng.integers(1, most + 1)) for most in (200, 1100, 70))
        width, registers = WIDTHS[rng.integers(len(WIDTHS))]
        machine = MachineModel(width, registers, threads=int(rng.choice(THREADS)))
        yield draw(rng, rows, columns, depth, machine)


def draw(rng: np.random.Generator, rows: int, columns: int, depth: int, machine: MachineModel) -> Case:
    op = str(rng.choice(["nn.dense", "nn.matmul", "nn.matmul", "nn.batch_matmul", "nn.contrib_dense_pack"]))
    if op == "nn.dense":
        return Case(op, ((rows, depth), (columns, depth)), machine)
    if op == "nn.contrib_dense_pack":
        lanes = machine.lanes("float32")
        panels = (-(-columns // lanes), depth, lanes)
        return Case(op, ((rows, depth), panels), machine, {"weight_layout": f"NC{lanes}n", "units": columns})
    flags = {name: bool(rng.integers(2)) for name in ("transpose_a", "transpose_b")}
    left = (depth, rows) if flags["transpose_a"] else (rows, depth)
    right = (columns, depth) if flags["transpose_b"] else (depth, columns)
    if op == "nn.matmul":
        return Case(op, (left, right), machine, flags)
    batch = int(rng.integers(1, 4))
    return Case(op, ((batch, *left), (int(rng.choice([1, batch])), *right)), machine, flags)


def problem_of(case: Case, rng: np.random.Generator, native: bool) -> str | None:
    """What is wrong with a case's kernel, ``None`` where nothing is."""
    kernel = product_kernel(case.op, [*case.shapes], case.machine, **case.attributes)
    counts = store_counts(kernel.body, kernel.outputs[0])
    if not (counts == 1).all():
        return f"{int((counts != 1).sum())} elements are not stored exactly once"
    if not native:
        return None
    arrays = [rng.normal(size=s).astype("float32") for s in case.shapes]
    (result,) = native_kernel.run_native(kernel, *arrays, threads=case.machine.threads, machine=case.machine)
    wanted = expected(case, *(a.astype("float64") for a in arrays))
    error = float(np.abs(result - wanted).max() / np.abs(wanted).max())
    return None if error < 1e-5 else f"differs by {error:.0e} of the largest"


def expected(case: Case, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if case.op == "nn.contrib_dense_pack":
        columns = right.transpose(1, 0, 2).reshape(right.shape[1], -1)
        return np.asarray(left @ columns[:, : case.attributes["units"]])
    transpose_b = case.attributes.get("transpose_b", case.op == "nn.dense")
    a = left.swapaxes(-1, -2) if case.attributes.get("transpose_a") else left
    return np.asarray(a @ (right.swapaxes(-1, -2) if transpose_b else right))


def unoptimized(llvm_ir: str, cpu: Cpu) -> bytes:
    """Object code as LLVM's instruction selection makes it of the text as it stands."""
    target = llvm_compile._llvm_target(cpu.triple)
    machine = target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=0, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(llvm_ir, context=llvm.create_context())
    module.triple, module.data_layout = cpu.triple, str(machine.target_data)
    return bytes(machine.emit_object(module))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--native", type=int, default=8, metavar="N", help="every Nth case as machine code")
    parser.add_argument("--optimized", type=int, default=10, metavar="N", help="every Nth of these with LLVM's passes")
    given = parser.parse_args()
    rng, begin, wrong = np.random.default_rng(given.seed), time.perf_counter(), 0
    for number, case in enumerate(cases(given.count, given.seed), 1):
        native_kernel.compile_object = compile_object if number % (given.native * given.optimized) == 0 else unoptimized  # type: ignore[attr-defined]
        try:
            problem = problem_of(case, rng, number % given.native == 0)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            wrong += 1
            print(f"case {number}: {case}: {problem}", flush=True)
        if number % 500 == 0:
            print(f"{number} cases, {wrong} wrong, {time.perf_counter() - begin:.0f} s", flush=True)
    ran = given.count // given.native
    print(f"{given.count} products of random sizes (seed {given.seed}), {ran} of them as machine code: {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
