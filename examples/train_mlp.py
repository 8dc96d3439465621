"""Train a network on digits with compiled gradients: python examples/train_mlp.py [mlp | convolution].

scikit-learn's 8 x 8 digits where it is installed; else digits that are drawn here, moved and with noise.
"""

import sys
from collections.abc import Callable

import numpy as np

import minitvm
from minitvm import relay

BATCH, STEPS, RATE, MOMENTUM = 64, 400, 0.1, 0.9
DIGITS = """
.###. ..#.. .###. .###. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... #.... ....# #...# #...#
#...# ..#.. ....# ..##. .#.#. ####. ####. ...#. .###. .####
#...# ..#.. ..##. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ....#
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .###.
"""


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images, (n, 64) float32 from 0 to 1, and which digit each is."""
    try:
        from sklearn.datasets import load_digits as of_sklearn
    except ImportError:
        return drawn_digits(1800)
    images, labels = of_sklearn(return_X_y=True)
    return (images / 16).astype("float32"), labels


def drawn_digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ten digits above, each somewhere in 8 x 8 pixels, in noise."""
    rng = np.random.default_rng(7)
    rows = [line.split() for line in DIGITS.split("\n") if line]
    shapes = np.array([[[c == "#" for c in row[digit]] for row in rows] for digit in range(10)], "float32")
    labels = rng.integers(0, 10, count)
    images = rng.normal(0, 0.2, (count, 8, 8))
    for image, label in zip(images, labels, strict=True):
        top, left = rng.integers(0, 3), rng.integers(0, 4)
        image[top : top + 6, left : left + 5] += shapes[label]
    return images.reshape(count, 64).astype("float32"), labels


def mlp(x: relay.Expr) -> relay.Expr:
    """(batch, 64) -> (batch, 10): two dense layers."""
    hidden = relay.nn.dense(x, relay.var("w1", shape=(64, 64)))
    hidden = relay.nn.relu(relay.nn.bias_add(hidden, relay.var("b1", shape=(64,))))
    return relay.nn.bias_add(relay.nn.dense(hidden, relay.var("w2", shape=(10, 64))), relay.var("b2", shape=(10,)))


def convolution(x: relay.Expr) -> relay.Expr:
    """(batch, 64) -> (batch, 10): a convolution, a pool and a dense layer."""
    image = relay.reshape(x, (BATCH, 1, 8, 8))
    hidden = relay.nn.conv2d(image, relay.var("w1", shape=(16, 1, 3, 3)), padding=(1, 1))
    hidden = relay.nn.relu(relay.nn.bias_add(hidden, relay.var("b1", shape=(16,))))
    hidden = relay.nn.batch_flatten(relay.nn.max_pool2d(hidden, pool_size=(2, 2), strides=(2, 2)))
    return relay.nn.bias_add(relay.nn.dense(hidden, relay.var("w2", shape=(10, 256))), relay.var("b2", shape=(10,)))


def train(network: Callable[[relay.Expr], relay.Expr]) -> float:
    """Gradient descent on nine tenths of the digits -> how many of the others are classified right."""
    images, labels = load_digits()
    held = len(images) // 10
    x, target = relay.var("x", shape=(BATCH, 64)), relay.var("target", shape=(BATCH, 10))
    classes = network(x)
    loss = -relay.mean(relay.sum(relay.nn.log_softmax(classes) * target, axis=1))
    params = [p for p in relay.analysis.free_vars(loss) if p not in (x, target)]
    step = relay.build(relay.transform.gradient(relay.Function([x, target, *params], loss)), "llvm")
    inference = relay.build(relay.Function([x, *params], classes), "llvm")

    rng = np.random.default_rng(0)
    weights = {p.name: rng.normal(0, 0.1, p.shape).astype("float32") for p in params}
    speed = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for n in range(STEPS):
        chosen = rng.integers(held, len(images), BATCH)
        given = {"x": images[chosen], "target": np.eye(10, dtype="float32")[labels[chosen]]}
        value, _, _, *slopes = step.run({**given, **weights})
        for p, slope in zip(params, slopes, strict=True):
            speed[p.name] = MOMENTUM * speed[p.name] - RATE * slope
            weights[p.name] += speed[p.name]
        if n % 100 == 0:
            print(f"step {n:3}  loss {float(value):.3f}")

    right = 0
    for start in range(0, held - BATCH + 1, BATCH):
        found = inference.run({"x": images[start : start + BATCH], **weights})[0]
        right += int(np.sum(found.argmax(1) == labels[start : start + BATCH]))
    return right / (held // BATCH * BATCH)


def main() -> None:
    networks = {"mlp": mlp, "convolution": convolution}
    for name in sys.argv[1:] or networks:
        print(f"{name}, minitvm {minitvm.__version__}")
        accuracy = train(networks[name])
        print(f"accuracy {accuracy:.3f}")
        assert accuracy >= 0.9


if __name__ == "__main__":
    main()
