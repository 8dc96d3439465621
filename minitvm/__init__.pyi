# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm import capi as capi
from minitvm import frontend as frontend
from minitvm import ir as ir
from minitvm import lab as lab
from minitvm import runtime as runtime
from minitvm import target as target
from minitvm import testing as testing
from minitvm.driver import HostCallWarning as HostCallWarning
from minitvm.driver import build as build
from minitvm.errors import MiniTVMError as MiniTVMError
from minitvm.errors import MiniTVMError as _TVMError
TVMError = _TVMError
from minitvm.frontend import from_onnx as from_onnx
from minitvm.generation import generate as generate
from minitvm.generation import stream as stream
from minitvm.ir.expr import Function as Function
from minitvm.ir.expr import Module as Module
from minitvm.ir.expr import Module as _IRModule
IRModule = _IRModule
from minitvm.models import compile as compile
from minitvm.ort.binding import IOBinding as IOBinding
from minitvm.ort.environment import disable_telemetry_events as disable_telemetry_events
from minitvm.ort.environment import enable_telemetry_events as enable_telemetry_events
from minitvm.ort.environment import get_all_providers as get_all_providers
from minitvm.ort.environment import get_available_providers as get_available_providers
from minitvm.ort.environment import get_build_info as get_build_info
from minitvm.ort.environment import get_device as get_device
from minitvm.ort.environment import get_version_string as get_version_string
from minitvm.ort.environment import has_collective_ops as has_collective_ops
from minitvm.ort.environment import preload_dlls as preload_dlls
from minitvm.ort.environment import set_default_logger_callback as set_default_logger_callback
from minitvm.ort.environment import set_default_logger_severity as set_default_logger_severity
from minitvm.ort.environment import set_default_logger_verbosity as set_default_logger_verbosity
from minitvm.ort.environment import set_global_thread_pool_sizes as set_global_thread_pool_sizes
from minitvm.ort.environment import set_seed as set_seed
from minitvm.ort.options import ExecutionMode as ExecutionMode
from minitvm.ort.options import ExecutionOrder as ExecutionOrder
from minitvm.ort.options import GraphOptimizationLevel as GraphOptimizationLevel
from minitvm.ort.options import OptionWarning as OptionWarning
from minitvm.ort.options import RunOptions as RunOptions
from minitvm.ort.options import SessionOptions as SessionOptions
from minitvm.ort.session import InferenceSession as InferenceSession
from minitvm.ort.session import ModelMetadata as ModelMetadata
from minitvm.ort.session import NodeArg as NodeArg
from minitvm.ort.values import OrtDevice as OrtDevice
from minitvm.ort.values import OrtValue as OrtValue
from minitvm.ort.values import copy_tensors as copy_tensors
from minitvm.passes.manager import PassContext as PassContext
from minitvm.runtime import debug as _debug_executor
debug_executor = _debug_executor
from minitvm.runtime import executor as _graph_executor
graph_executor = _graph_executor
from minitvm.runtime import library as _module
module = _module
from minitvm.runtime import ndarray as _nd
nd = _nd
from minitvm.runtime.cache import CacheWarning as CacheWarning
from minitvm.runtime.devices import cpu as cpu
from minitvm.runtime.devices import cuda as _gpu
gpu = _gpu
from minitvm.runtime.devices import cuda as cuda
from minitvm.runtime.devices import device as _context
context = _context
from minitvm.runtime.devices import device as device
from minitvm.runtime.executor import GraphModule as GraphModule
from minitvm.runtime.library import Library as Library
from minitvm.runtime.library import load as load
from minitvm.runtime.library import load_module as load_module
from minitvm.target import Target as Target
from minitvm.torch import from_torch as from_torch
from minitvm.tvm import contrib as contrib
from minitvm.tvm import error as error
from minitvm.tvm import instrument as instrument
from minitvm.tvm import parser as parser
from minitvm.tvm import relay as relay
from minitvm.tvm import transform as transform
from minitvm.tvm.relay.build_module import create_executor as create_executor
__version__: str
