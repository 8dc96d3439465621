"""minitvm as an ONNX backend, with the calls of ``onnx.backend.base``: ``prepare``, ``run_model``, ``run_node``.

``minitvm.onnx_backend.prepare(model).run([x])`` is the tuple of the model's results.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from minitvm.errors import InputError, MiniTVMError, UnknownValueError
from minitvm.frontend import from_onnx
from minitvm.ir.evaluate import as_value
from minitvm.session import InferenceSession


class PreparedModel(BackendRep):
    """A model that is ready to run, in an :class:`~minitvm.InferenceSession`."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def run(self, inputs: Any, **_: Any) -> tuple[np.ndarray, ...]:
        """Results of arrays for the inputs: by name, in the model's order, or one alone.

        Raises :class:`InputError` where they do not fit the model.
        """
        names = [argument.name for argument in self.session.get_inputs()]
        if not isinstance(inputs, Mapping):
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) != len(names):
                raise InputError(f"{len(given)} inputs given, the model takes {len(names)}: {', '.join(names)}")
            inputs = dict(zip(names, given, strict=True))
        return tuple(self.session.run(None, {name: as_value(value) for name, value in inputs.items()}))


class MiniTVMBackend(Backend):
    """Compiles for the CPU.  Keyword arguments are those of :class:`~minitvm.InferenceSession`."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """True if the model can be imported, its shapes as they stand."""
        try:
            from_onnx(model)
        except UnknownValueError as error:
            return bool(error.inputs) and cls.supports_device(device)
        except MiniTVMError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        cls._require(device)
        return PreparedModel(InferenceSession(model, **kwargs))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Sequence[Any], device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Results of one node, of the newest operator sets unless ``opset_imports`` among ``kwargs`` names others."""
        imports = kwargs.pop("opset_imports", None)
        names = [name for name in node.input if name]
        if len(inputs) != len(names):
            raise InputError(f"{len(inputs)} inputs given, the node takes {len(names)}: {', '.join(names)}")
        feeds = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True)}
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", infos, results)
        return cls.run_model(onnx.helper.make_model(graph, opset_imports=imports), feeds, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return bool(Device(device).type == DeviceType.CPU)

    @classmethod
    def _require(cls, device: str) -> None:
        if not cls.supports_device(device):
            raise InputError(f"minitvm has no device {device!r}", hint="the device is 'CPU'")


is_compatible = MiniTVMBackend.is_compatible
prepare = MiniTVMBackend.prepare
run_model = MiniTVMBackend.run_model
run_node = MiniTVMBackend.run_node
supports_device = MiniTVMBackend.supports_device
