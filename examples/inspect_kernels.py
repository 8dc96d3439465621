"""One layer at every stage: graph, group, loops, LLVM IR, assembly, CUDA C: python examples/inspect_kernels.py."""

import numpy as np

import minitvm
from minitvm import relay


def layer() -> minitvm.Module:
    """relu(dense(x) + b)."""
    x = relay.var("x", shape=(4, 32))
    product = relay.nn.dense(x, relay.var("weight"), units=16)
    return relay.IRModule.from_expr(relay.nn.relu(relay.nn.bias_add(product, relay.var("bias"), axis=-1)))


def main() -> None:
    rng = np.random.default_rng(0)
    shapes = {"weight": (16, 32), "bias": (16,)}
    params = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    library = minitvm.build(layer(), "llvm", params, opt_level=3, num_threads=1, trace=True)
    report = library.report
    for step in report.steps:
        if step.after is not step.before:
            print(f"=== after {step.name}\n{step.after}")
    for name in report.groups:
        kernel = report.kernel(name)
        print(f"=== group\n{kernel.group}")
        print("=== decisions", *kernel.decisions, sep="\n")
        for stage in ("loops", "llvm", "asm", "cuda"):
            print(f"=== {stage}\n{kernel.text(stage)}")
    print(f"=== facts\n{library.function_metadata}")


if __name__ == "__main__":
    main()
