"""Answers to the course's exercises that students give and that are wrong, with a word of the hint that has to come.

``(chapter, exercise, code put behind the solution, part of what is said)``: the code replaces the right answer.
"""

WRONG: list[tuple[str, str, str, str]] = [
    (
        "chapter1", "residual_block",
        "def residual_block(x, first, second):\n"
        "    return relay.nn.relu(relay.nn.conv2d(relay.nn.relu(relay.nn.conv2d(x, first)), second))",
        "padding=(1, 1)",
    ),
    (
        "chapter1", "residual_block",
        "def residual_block(x, first, second):\n"
        "    y = relay.nn.conv2d(relay.nn.conv2d(x, first, padding=(1, 1)), second, padding=(1, 1))\n"
        "    return relay.nn.relu(y + x)",
        "is there a relu after the first convolution",
    ),
    ("chapter1", "residual_block", "def residual_block(x, first, second):\n    pass", "return the last call"),
    (
        "chapter1", "conv_shape",
        "def conv_shape(data, weight, strides=(1, 1), padding=(0, 0), dilation=(1, 1)):\n"
        "    n, c, h, w = data\n    o, i, kh, kw = weight\n    if c != i:\n        raise ValueError(f'{c} and {i}')\n"
        "    return n, o, (h + 2 * padding[0] - kh) // strides[0] + 1, (w + 2 * padding[1] - kw) // strides[1] + 1",
        "(kh - 1) * dilation + 1",
    ),
    (
        "chapter1", "conv_shape",
        "def conv_shape(data, weight, strides=(1, 1), padding=(0, 0), dilation=(1, 1)):\n"
        "    return relay.nn.conv2d(relay.var('d', shape=data), relay.var('w', shape=weight), strides=strides,\n"
        "                           padding=padding, dilation=dilation).type.shape",
        "which is the answer",
    ),
    (
        "chapter1", "count_calls",
        "def count_calls(root):\n"
        "    from collections import Counter\n    from minitvm.ir.visitor import calls\n"
        "    return dict(Counter(c.op.name for c in calls(root)))",
        ", which is the answer",
    ),
    (
        "chapter1", "count_calls",
        "def count_calls(root, seen=None):\n"
        "    seen = set() if seen is None else seen\n    counts = {}\n"
        "    if root in seen:\n        return counts\n    seen.add(root)\n"
        "    if isinstance(root, Call):\n        counts[root.op.name] = 1\n"
        "    for operand in operands(root):\n"
        "        for name, n in count_calls(operand, seen).items():\n"
        "            counts[name] = counts.get(name, 0) + n\n"
        "    return counts",
        "no recursion",
    ),
    (
        "chapter2", "maximum_is_relu",
        "@rule(call('maximum', value('x'), const('c')))\ndef maximum_is_relu(x, c):\n    return relay.nn.relu(x)",
        "return Declined(...)",
    ),
    (
        "chapter2", "maximum_is_relu",
        "@rule(call('maximum', value('x'), const('c')))\ndef maximum_is_relu(x, c):\n"
        "    return Declined('not 0') if c.value.any() else relay.nn.relu(x)",
        "compare whole.type with x.type",
    ),
    (
        "chapter2", "merge_scales",
        "@rule(call('multiply', call('multiply', value('x'), const('a')), const('b')))\n"
        "def merge_scales(x, a, b):\n    return relay.multiply(x, relay.const(a.value * b.value))",
        "single_use=True",
    ),
    (
        "chapter2", "divide_by_power_of_two",
        "@rule(call('divide', value('x'), const('c')))\n"
        "def divide_by_power_of_two(x, c):\n    return relay.multiply(x, relay.const(1 / c.value))",
        "np.frexp",
    ),
    (
        "chapter4", "fold_scale",
        "from minitvm.lab.course.texts import reference_fold_scale as fold_scale",
        "the exercise is to write it",
    ),
    (
        "chapter3", "merge_equal",
        "from minitvm import transform\nmerge_equal = transform.EliminateCommonSubexpr()",
        "merge_equal is minitvm's own, from minitvm/passes/redundancy.py",
    ),
    ("chapter2", "drop_double_negation", "def drop_double_negation(x):\n    return x", "put @rule(pattern) above"),
    (
        "chapter3", "merge_equal",
        "def merge_equal(function):\n    first = {}\n"
        "    def visit(old, new):\n"
        "        return first.setdefault((new.op.name, *new.args), new) if isinstance(new, Call) else new\n"
        "    return rewrite(function, visit)",
        "compare call.op, not call.op.name",
    ),
    (
        "chapter3", "merge_equal",
        "def merge_equal(function):\n    first = {}\n"
        "    def visit(old, new):\n"
        "        return first.setdefault((new.op, *new.args), new) if isinstance(new, Call) else new\n"
        "    return rewrite(function, visit)",
        "op.stateful",
    ),
    (
        "chapter3", "merge_equal",
        "def merge_equal(function):\n"
        "    from minitvm.ir.expr import Module\n    from minitvm.passes import get_pass\n"
        "    return get_pass('EliminateCommonSubexpr')(Module(function)).main",
        "passes/redundancy.py, which is the answer",
    ),
    (
        "chapter3", "scale_counterexample",
        "def scale_counterexample():\n"
        "    return 'def @main(%x: Tensor[(4,), float32]) { multiply(nn.relu(%x), 2f) }'",
        "for which c",
    ),
    ("chapter3", "prove", "def prove(rule):\n    pass", "passes"),
    ("chapter3", "prove", "def prove(rule):\n    assert False", "what does the check expect"),
    (
        "chapter4", "fold_constants",
        "def fold_constants(function):\n"
        "    def visit(old, new):\n"
        "        if isinstance(new, Call) and all(isinstance(a, Constant) for a in new.args):\n"
        "            return Constant(np.asarray(new.op.reference(*(a.value for a in new.args))))\n"
        "        return new\n"
        "    return rewrite(function, visit)",
        "zeros has no operands",
    ),
    (
        "chapter4", "fold_constants",
        "def fold_constants(function):\n"
        "    from minitvm.ir.expr import Module\n    from minitvm import transform\n"
        "    return transform.FoldConstant()(Module(function)).main",
        "passes/redundancy.py, which is the answer",
    ),
    (
        "chapter4", "fold_batch_norm",
        "def fold_batch_norm(weight, gamma, beta, mean, var, epsilon):\n"
        "    s = gamma / np.sqrt(var)\n    return weight * s[:, None, None, None], beta - mean * s",
        "below the root",
    ),
    (
        "chapter4", "fold_scale",
        "@rule(call('multiply', call('nn.conv2d', value('x'), const('w'), single_use=True), const('c')),\n"
        "      exactness='reassociating', bound=Bound(2, Of.SUMS))\n"
        "def fold_scale(x, w, c):\n    return relay.nn.conv2d(x, relay.const(w.value * c.value.reshape(-1, 1, 1, 1)))",
        "Call(conv.op",
    ),
    (
        "chapter4", "scale_before_relu",
        "@rule(call('multiply', call('nn.relu', value('x'), single_use=True), const('c')))\n"
        "def scale_before_relu(x, c):\n    return relay.nn.relu(relay.multiply(x, c))",
        "max(x * c, 0) differ for c < 0",
    ),
    (
        "chapter5", "post_dominators",
        "def post_dominators(users):\n    return {n: (u[0] if u else None) for n, u in users.items()}",
        "go through the nodes in reverse",
    ),
    ("chapter5", "groups", "def groups(users, kinds):\n    return [{n} for n in users]", "the chain becomes one group"),
    ("chapter5", "groups", "def groups(users, kinds):\n    return [set(users)]", "one heavy, reducing or opaque"),
    (
        "chapter5", "bytes_moved",
        "def bytes_moved(function):\n    return sum(c.type.nbytes for c in calls(function.body))",
        "reads x and the weight",
    ),
    (
        "chapter6", "place",
        "def place(layout, shape, index):\n    at = 0\n    for axis in layout:\n"
        "        at = at * shape[axis] + index[axis]\n    return at",
        "C counts blocks",
    ),
    (
        "chapter6", "cancel_transforms",
        "@rule(call('layout_transform', call('layout_transform', value('x')), name='second'))\n"
        "def cancel_transforms(x, second):\n"
        "    return x if x.type == second.type else Declined('another type')",
        "all four names have to fit",
    ),
    (
        "chapter6", "relu_first",
        "@rule(call('nn.relu', call('layout_transform', value('x'), name='transform')))\n"
        "def relu_first(x, transform):\n    return Call(transform.op, [relay.nn.relu(x)])",
        "single_use=True",
    ),
    (
        "chapter7", "matmul",
        "def matmul(m, k, n):\n"
        "    a, b, c = Buffer('a', (m, k), 'float32'), Buffer('b', (k, n), 'float32'), Buffer('c', (m, n), 'float32')\n"
        "    add = lambda i, j, r: Store(c, (i, j), c[i, j] + a[i, r] * b[r, j])\n"
        "    body = loop(m, lambda i: loop(n, lambda j: loop(k, lambda r: add(i, j, r))))\n"
        "    return Kernel('matmul', (a, b, c), body)",
        "set to 0 before the sum begins",
    ),
    ("chapter7", "in_lanes", "def in_lanes(kernel):\n    return kernel", "vectorize the inner loop"),
    ("chapter7", "in_lanes", "def in_lanes(kernel):\n    return schedule.vectorize(kernel, 'r')", "reduction into acc"),
    ("chapter7", "fast", "def fast(kernel):\n    return kernel", "gives each row a sum of its own"),
    (
        "chapter8", "llvm_of",
        "def llvm_of(kernel):\n    return 'define void @%s() { ret }' % kernel.name",
        "it names the line",
    ),
    (
        "chapter8", "on_gpu",
        "def on_gpu(kernel):\n    kernel = schedule.split(kernel, 'i', 128, tail='shorter')\n"
        "    kernel = schedule.bind(kernel, 'i_outer', LoopKind.BLOCK_X)\n"
        "    return schedule.bind(kernel, 'i_inner', LoopKind.THREAD_X)",
        "n = 1",
    ),
    (
        "chapter8", "plan_memory",
        "def plan_memory(steps, keep):\n    at, found = 0, {}\n"
        "    for name, _, nbytes in steps:\n        found[name] = at\n        at += nbytes\n    return found",
        "its place is free again",
    ),
    (
        "chapter8", "plan_memory",
        "def plan_memory(steps, keep):\n    return {name: n % 2 * 1000 for n, (name, _, _) in enumerate(steps)}",
        "both included",
    ),
]  # fmt: skip
