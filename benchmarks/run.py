"""``python benchmarks/run.py``: the same as ``python -m benchmarks`` in the repository's root."""

import pathlib
import runpy
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
runpy.run_module("benchmarks", run_name="__main__")
