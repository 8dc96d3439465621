"""Classify a photograph: python examples/classify_image.py [photograph]."""

import sys
from importlib import resources

import numpy as np
from PIL import Image

import minitvm

DATA = resources.files("minitvm") / "demo_data"


def preprocess(image: Image.Image) -> np.ndarray:
    """The short side to 256, the middle 224 x 224, pixels to about -1..1: (1, 3, 224, 224) float32."""
    image = image.convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    pixels = (np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32) - 127) / 128
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[np.newaxis])


def main() -> None:
    photograph = sys.argv[1] if len(sys.argv) > 1 else DATA / "chelsea.png"
    session = minitvm.InferenceSession(DATA / "efficientnet_lite0.onnx")
    with Image.open(photograph) as image:
        [logits] = session.run(None, {"image": preprocess(image)})
    labels = (DATA / "imagenet_labels.txt").read_text(encoding="utf-8").splitlines()
    for index in np.argsort(-logits[0])[:5]:
        print(f"{logits[0, index]:7.2f}  {labels[index]}")


if __name__ == "__main__":
    main()
