"""The benchmark of decoders: what is said of runtimes beside each other, and the loop that reads."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import decode
from benchmarks.decoders import Decoder


def found(runtime: str, median: float, *sums: float) -> decode.Decoding:
    return decode.Decoding("4 bits", runtime, 1, 9.0, median, median, median, 100.0, 1.0, sums)


def test_shares_of_reading_and_logits_that_differ() -> None:
    runs = [found("minitvm", 4.0, 5.0, 6.0), found("onnxruntime", 5.0, 5.01, 6.0), found("openvino", 8.0, 5.0, 7.0)]
    lines = list(map(str, decode._compared([*runs, found(decode.READING, 2.0, 0.0, 0.0)])))
    assert [line.split(", ")[-1] for line in lines] == [
        " 50% of reading; peak 100 MB",
        " 40% of reading; peak 100 MB",
        " 25% of reading; peak 100 MB; logits differ by 1",
        " 1.0 GB/s",
    ]
    wrong = [runs[0], found("onnxruntime", 5.0, 5.0, 7.0), runs[2]]
    with pytest.raises(ValueError, match="4 bits: logits differ by 1"):
        list(decode._compared(wrong))


def test_the_loop_reads_with_all_threads() -> None:
    loop = decode.Reading(Decoder(layers=1, hidden=64, heads=2, groups=1, inner=64, vocabulary=100), 2)
    spent, logits = loop.step(np.zeros((1, 1), np.int64))
    assert spent > 0 and logits.shape == (1,)
