# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm import ir as ir
from minitvm import runtime as runtime
from minitvm import target as target
from minitvm import testing as testing
from minitvm.driver import build as build
from minitvm.errors import MiniTVMError as _TVMError
TVMError = _TVMError
from minitvm.ir.expr import Module as _IRModule
IRModule = _IRModule
from minitvm.runtime import ndarray as _nd
nd = _nd
from minitvm.runtime.devices import cpu as cpu
from minitvm.runtime.devices import cuda as _gpu
gpu = _gpu
from minitvm.runtime.devices import cuda as cuda
from minitvm.runtime.devices import device as _context
context = _context
from minitvm.runtime.devices import device as device
from minitvm.target import Target as Target
from minitvm.tvm import contrib as contrib
from minitvm.tvm import error as error
from minitvm.tvm import instrument as instrument
from minitvm.tvm import parser as parser
from minitvm.tvm import relay as relay
from minitvm.tvm import transform as transform
