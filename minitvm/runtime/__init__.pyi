# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm.runtime.devices import Device as Device
from minitvm.runtime.devices import cpu as cpu
from minitvm.runtime.devices import cuda as cuda
from minitvm.runtime.devices import device as device
from minitvm.runtime.library import Library as _Module
Module = _Module
from minitvm.runtime.library import load_module as load_module
from minitvm.runtime.ndarray import NDArray as NDArray
from minitvm.runtime.param_dict import load_param_dict as load_param_dict
from minitvm.runtime.param_dict import save_param_dict as save_param_dict
