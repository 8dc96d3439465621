"""Templates: how one operator runs fast on one target.  Importing this package registers all that are there."""

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_file.name)
