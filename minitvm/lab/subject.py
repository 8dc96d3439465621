"""What experiments are made on: a model or a module, built in several ways, and run on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minitvm.driver import backend_for, build_consuming
from minitvm.errors import ConfigError
from minitvm.frontend import from_onnx
from minitvm.ir.expr import Function, Module
from minitvm.lab.inputs import random_inputs
from minitvm.passes.pipeline import Plan
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from minitvm.target import Target


@dataclass(frozen=True)
class Subject:
    """A module with its parameters, and what it is compiled for."""

    module: Module
    params: Mapping[str, Any]
    target: str | Target = "llvm"
    num_threads: int | None = None

    @staticmethod
    def of(
        model: Any,
        params: Mapping[str, Any] | None = None,
        target: str | Target = "llvm",
        num_threads: int | None = None,
        shape_dict: Mapping[str, Sequence[int | None]] | None = None,
        value_dict: Mapping[str, Any] | None = None,
    ) -> Subject:
        """A module, a function, or an ONNX model (a path, bytes, a ``ModelProto``); raises what ``from_onnx`` does."""
        if isinstance(model, (Module, Function)):
            if shape_dict or value_dict:
                raise ConfigError(
                    "a module has shapes and values", hint="shape_dict and value_dict are for ONNX models"
                )
            module = Module(model) if isinstance(model, Function) else model
            return Subject(module, dict(params or {}), target, num_threads)
        if params:
            raise ConfigError("an ONNX model has parameters of its own", hint="params are for modules")
        module, found = from_onnx(model, shape_dict=shape_dict, value_dict=value_dict)
        return Subject(module, found, target, num_threads)

    def build(self, opt_level: int | None = None, plan: Plan | None = None) -> Library:
        """Compiled once more; raises what ``build`` does."""
        backend = backend_for(self.target, self.num_threads)
        return build_consuming(self.module, dict(self.params), backend, opt_level, plan=plan)

    @staticmethod
    def runner(library: Library) -> GraphModule:
        """The library on its device, fed with random inputs, always the same ones."""
        made = GraphModule(library["default"](library.device()))
        made.run(random_inputs(made, 0))
        return made
