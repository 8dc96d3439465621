"""A pass of one rule, checked and put to work: python examples/write_a_pass.py."""

from minitvm import relay
from minitvm.ir.expr import Expr
from minitvm.ir.pattern import call, value
from minitvm.passes import PassContext, PassLog, Replacement, Sequential, SimplifyInference, rule, rule_pass
from minitvm.testing import check_rewrite, check_unchanged


@rule(call("nn.relu", call("abs", value("x"), name="magnitude")))
def drop_relu_of_magnitude(x: Expr, magnitude: Expr) -> Replacement:
    """What is never negative passes a rectifier unchanged."""
    return magnitude


BEFORE = "def @main(%x: Tensor[(2, 3), float32]) { exp(nn.relu(abs(%x))) }"
AFTER = "def @main(%x: Tensor[(2, 3), float32]) { exp(abs(%x)) }"


def main() -> None:
    check_rewrite(drop_relu_of_magnitude, before=BEFORE, after=AFTER)
    check_unchanged(drop_relu_of_magnitude, BEFORE.replace("abs", "negative"))

    log = PassLog()
    pipeline = Sequential([SimplifyInference(), rule_pass(drop_relu_of_magnitude, name="DropReluOfMagnitude")])
    with PassContext(opt_level=3, instruments=[log]):
        print(pipeline(relay.parse(BEFORE)))
    print(log)


if __name__ == "__main__":
    main()
