"""The operators, by family.  Importing this package registers all of them in ``minitvm.ir.op.OPS``."""

import importlib
import pkgutil

for _family in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_family.name)
