# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
import base64
import functools
import importlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
import numpy as np
from minitvm.errors import ParseError as ParseError
from minitvm.ir.expr import Call as Call
from minitvm.ir.expr import Constant as Constant
from minitvm.ir.expr import Expr as Expr
from minitvm.ir.expr import Function as Function
from minitvm.ir.expr import Module as Module
from minitvm.ir.expr import Var as Var
from minitvm.ir.op import Op as Op
from minitvm.ir.parser import _Parser as _Parser
from minitvm.ir.parser import parse_expr as __our_expr
_our_expr = __our_expr
from minitvm.ir.parser import parse_module as __our_module
_our_module = __our_module
from minitvm.ir.reader import _TOKEN as __OURS
_OURS = __OURS
from minitvm.ir.reader import Constants as Constants
from minitvm.ir.reader import Token as Token
from minitvm.ir.reader import tokenize as tokenize
from minitvm.ir.types import Type as Type
from minitvm.ir.types import accepts as accepts
from minitvm.runtime.param_dict import _load_array as _load_array
from minitvm.runtime.param_dict import _Reader as _Reader
from minitvm.scopes.groups import as_groups as as_groups
from minitvm.scopes.infer import infer_module as infer_module
from minitvm.scopes.names import linked as linked
from minitvm.scopes.names import named as named
from minitvm.scopes.nodes import Global as Global
from minitvm.scopes.nodes import Let as Let
from minitvm.scopes.nodes import applied as applied
from minitvm.scopes.nodes import conditional as conditional
from minitvm.scopes.nodes import declared as declared
from minitvm.scopes.nodes import is_plain_module as is_plain_module
def parse(source: str, source_name: Any='from_string', init_module: Module | None=None, init_meta_table: Any=None) -> Module:
    """The module that a text describes: Relay's where it has a version line, else ours.

    ``source_name`` may be the arrays that our text refers to; ``init_module`` has functions that stay beside.
    """
    ...
def parse_expr(source: str, constants: Constants | None=None, variables: Any=()) -> Any:
    """The expression that a text describes: Relay's, with a version line or without, unless ``constants`` or
    ``variables`` are given, as our text has them; the name of an operator or of a function by itself is that.
    """
    ...
def parse_type(source: str) -> Type:
    """The type that a text describes: ``Tensor[(1, 3), float32]``."""
    ...
fromtext = parse
parse_module = parse
