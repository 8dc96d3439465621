"""ONNX models: what becomes of every operator, in every opset.  Importing this package registers all builders."""

import importlib
import pkgutil

from minitvm.errors import require

require("onnx", "reading ONNX models")
for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_file.name)
