# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm.ir.expr import GlobalVar as GlobalVar
from minitvm.ir.expr import Module as _IRModule
IRModule = _IRModule
from minitvm.ir.op import Op as Op
from minitvm.ir.structural import assert_structural_equal as assert_structural_equal
from minitvm.ir.structural import structural_equal as structural_equal
from minitvm.ir.structural import structural_hash as structural_hash
from minitvm.ir.types import FuncType as FuncType
from minitvm.ir.types import Span as Span
from minitvm.ir.types import TensorType as TensorType
from minitvm.ir.types import TupleType as TupleType
from minitvm.ir.types import Type as Type
