"""A template whose loops are steps over plain ones: the list can be printed, replayed one by one, and changed.

minitvm show model.onnx --schedule KERNEL
"""

from __future__ import annotations

from abc import abstractmethod

from minitvm.codegen.problem import Choice, Template
from minitvm.codegen.schedule_steps import Steps
from minitvm.ir.loop import Kernel, Stmt


class Scheduled(Template):
    """A subclass says what is computed, in plain loops, and the steps that make a choice of them."""

    @abstractmethod
    def plain(self) -> Stmt:
        """What is computed, in order, element by element."""

    @abstractmethod
    def schedule(self, kernel: Kernel, choice: Choice) -> Steps:
        """The steps that make the loops of a choice of the plain ones."""

    def steps(self, choice: Choice | None = None) -> Steps:
        """The steps that make a choice, by default the best, of the plain loops."""
        problem = self.problem
        buffers = (*problem.inputs, *problem.outputs)
        kernel = Kernel(self.op.name, buffers, self.plain(), results=len(problem.outputs))
        return self.schedule(kernel, choice or self.choice)

    def loops(self, choice: Choice) -> Stmt:
        return self.steps(choice).kernel.body
