"""A differential fuzzer: random ONNX graphs through minitvm, ONNX Runtime and ONNX's own reference.

``python -m tests.fuzz --help`` says how to run it, docs/fuzzing.md what it does.  The way of a case:
``generate`` (with ``draw`` and the operators' generators) makes a ``case.Case``; ``judge`` has it run by ``subject``
and ``peers`` in processes of their own (``worker``) and compares (``freedom``, ``open_ends``); ``failure``
makes a failing one small, and a test; ``campaign`` does so for many.
"""
