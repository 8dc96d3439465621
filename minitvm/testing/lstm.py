"""An LSTM unrolled over time (Hochreiter and Schmidhuber 1997), with Relay's parameter names."""

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.builder import call_op, const, function, var
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import workload_of


def get_net(iterations: int = 1, num_hidden: int = 4, batch_size: int = 1, dtype: str = "float32") -> Function:
    """``main`` from ``data``: (batch, num_hidden), read at every one of ``iterations`` steps, to the last output."""
    data = var("data", shape=(batch_size, num_hidden), dtype=dtype)
    zeros = const(np.zeros((batch_size, num_hidden), dtype))
    weights = {name: (var(f"{name}_weight"), var(f"{name}_bias")) for name in ("i2h", "h2h")}

    def dense(x: Expr, name: str) -> Expr:
        weight, bias = weights[name]
        return ir.nn.bias_add(ir.nn.dense(x, weight, units=4 * num_hidden), bias, axis=-1)

    output: Expr = zeros
    state: Expr = zeros
    for _ in range(iterations):
        gates = call_op("split", dense(data, "i2h") + dense(output, "h2h"), indices_or_sections=4, axis=1)
        keep, new, write, read = ir.sigmoid(gates[1]), ir.tanh(gates[2]), ir.sigmoid(gates[0]), ir.sigmoid(gates[3])
        state = keep * state + write * new
        output = read * ir.tanh(state)
    return function(output)


get_workload = workload_of(get_net)
