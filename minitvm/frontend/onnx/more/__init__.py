"""The long tail of ONNX's operators, each file of which can be taken away.  Importing this package registers all."""

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_file.name)
