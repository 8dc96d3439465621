"""Files that are no models, and tensors stored badly or elsewhere: each message word for word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_build import build, error_of, one_node, value

from minitvm.errors import FrontendError, NoSuchFileError, NotAModelError, UnsupportedOperatorError
from minitvm.frontend import from_onnx
from minitvm.ir.dtypes import DTYPES

NEWEST = onnx.defs.onnx_opset_version()
X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


# --- files ----------------------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    assert error_of(NoSuchFileError, tmp_path / "no.onnx") == f"there is no file {tmp_path}/no.onnx"


def test_folder(tmp_path: Path) -> None:
    assert error_of(FrontendError, tmp_path) == (
        f"{tmp_path} is a folder, not an ONNX file\n  = hint: give the path of the .onnx file inside it"
    )


def test_empty(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    assert error_of(NotAModelError, str(path)) == (
        f"{path}: empty, not an ONNX model\n  = hint: was the download or export interrupted?"
    )
    assert error_of(NotAModelError, b"").startswith("the given bytes: empty, not an ONNX model")


def test_text(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("<html>404: Not Found</html>\n")
    assert error_of(NotAModelError, path) == (
        f"{path}: text, not an ONNX model\n  = hint: an ONNX file is binary; was it a download page?"
    )


def test_other_bytes() -> None:
    assert error_of(NotAModelError, bytes(range(255, 0, -1))) == (
        "the given bytes: not an ONNX model\n  = hint: minitvm reads ONNX files (protobuf, .onnx)"
    )


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_truncated(tmp_path: Path, share: float) -> None:
    data = one_node("Add", X, constants={1: X}).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    assert error_of(NotAModelError, path) == (
        f"{path}: a truncated or damaged ONNX model\n  = hint: copy or export the file again"
    )


@pytest.mark.parametrize(
    ("file", "framework", "exporter"),
    [
        ("m.params", "MXNet", "mxnet.onnx.export_model"),
        ("m.json", "MXNet", "mxnet.onnx.export_model"),
        ("m.mlmodel", "CoreML", "onnxmltools.convert_coreml"),
        ("m.pb", "TensorFlow", "tf2onnx"),
        ("m.pt", "PyTorch", "torch.onnx.export"),
    ],
)
def test_other_frameworks(tmp_path: Path, file: str, framework: str, exporter: str) -> None:
    path = tmp_path / file
    path.write_bytes(b"\x12\x01\x00\xff\xfe not protobuf at all")
    assert error_of(NotAModelError, path) == (
        f"{path} is a {framework} file; minitvm reads ONNX models\n"
        f"  = hint: export the model to ONNX, for example with {exporter}"
    )


def test_saved_model_of_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    assert error_of(NotAModelError, tmp_path).startswith(f"{tmp_path} is a TensorFlow file; minitvm reads ONNX models")


def test_something_else() -> None:
    assert error_of(FrontendError, 3) == (
        'a model is a path, bytes or an onnx.ModelProto; found int\n  = hint: from_onnx("model.onnx")'
    )


def test_a_model_without_its_parts() -> None:
    model = one_node("Relu", X)
    del model.opset_import[:]
    assert error_of(FrontendError, model) == (
        "the model: an ONNX model without operator set versions\n  = hint: was the export interrupted?"
    )
    model = one_node("Relu", X)
    del model.graph.output[:]
    assert error_of(FrontendError, model) == "the model: the graph has no outputs"


def test_opsets() -> None:
    old = build([helper.make_node("Crop", ["x"], ["y"], border=[0, 0, 0, 0])], [value("x", X)], ["y"], opset=6)
    assert error_of(UnsupportedOperatorError, old).startswith(
        "the model has operators that minitvm cannot import: Crop (1)\n"
    )
    for none in (0, -1, -(2**40)):
        assert error_of(FrontendError, one_node("Relu", X, opset=none)) == (
            f"the model uses ONNX opset {none}; the first is 1\n  = hint: the file is damaged"
        )


# --- tensors --------------------------------------------------------------------------------------------------


def external(tmp_path: Path, location: str, content: bytes | None = None, offset: int = 0, length: int = 24) -> Path:
    """A model whose weight of (2, 3) float32 lies in another file."""
    model = one_node("Add", X, constants={1: X})
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", str(offset)), ("length", str(length))):
        weight.external_data.add(key=key, value=text)
    folder = tmp_path / "model"
    folder.mkdir()
    if content is not None:
        (folder / location).write_bytes(content)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def test_external_data(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin", b"....." + X.tobytes(), offset=5)
    _, params = from_onnx(path)
    np.testing.assert_array_equal(params["x1"], X)


def test_external_data_missing(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    assert error_of(FrontendError, path) == (
        "external data 'w.bin' does not exist\n"
        '  | ONNX tensor "x1"\n'
        f"  = hint: put the file into the model's folder, {path.parent.resolve()}"
    )


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin"])
def test_external_data_outside(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(X.tobytes())
    assert error_of(FrontendError, external(tmp_path, location)) == (
        f"external data {location!r} leaves the model's folder\n"
        '  | ONNX tensor "x1"\n'
        "  = hint: external data must lie in the folder of the .onnx file or below it"
    )


def test_external_data_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(X.tobytes())
    path = external(tmp_path, "link.bin")
    (path.parent / "link.bin").symlink_to(tmp_path / "w.bin")
    assert error_of(FrontendError, path).startswith("external data 'link.bin' leaves the model's folder")


@pytest.mark.parametrize("location", ["a\0b", "x" * 5000, "circle.bin"])
def test_external_data_in_what_is_no_file(tmp_path: Path, location: str) -> None:
    path = external(tmp_path, location)
    (tmp_path / "model" / "circle.bin").symlink_to("circle.bin")
    shown = location if len(location) < 80 else f"{location[:80]}..."
    assert error_of(FrontendError, path).startswith(f"external data {shown!r} ")


@pytest.mark.parametrize("dims", [(0, 1 << 62, 1 << 62), (1 << 62, 1 << 62, 0), (0,) * 70])
@pytest.mark.parametrize("beside", [True, False])
def test_shapes_that_no_array_has(tmp_path: Path, dims: tuple[int, ...], beside: bool) -> None:
    path = external(tmp_path, "w.bin", b"")
    model = onnx.load(path, load_external_data=False)
    weight = model.graph.initializer[0]
    weight.dims[:] = dims
    if beside:
        weight.external_data[2].value = "0"
    else:
        weight.data_location = onnx.TensorProto.DEFAULT
        weight.ClearField("external_data")
    path.write_bytes(model.SerializeToString())
    assert error_of(FrontendError, path).startswith("the data of a tensor does not fill its shape (")


def test_external_data_too_short(tmp_path: Path) -> None:
    assert error_of(FrontendError, external(tmp_path, "w.bin", X.tobytes()[:-4])) == (
        'w.bin has 20 bytes; a tensor is stored at 0 to 24\n  | ONNX tensor "x1"\n  = hint: the file is truncated'
    )


@pytest.mark.parametrize("entry", ["offset", "length"])
def test_external_data_with_a_place_that_is_no_number(tmp_path: Path, entry: str) -> None:
    path = external(tmp_path, "w.bin", X.tobytes())
    model = onnx.load(path, load_external_data=False)
    (found,) = (e for e in model.graph.initializer[0].external_data if e.key == entry)
    found.value = "many"
    path.write_bytes(model.SerializeToString())
    assert error_of(FrontendError, path) == (
        f"the {entry} of external data is 'many', not a number\n  | ONNX tensor \"x1\"\n  = hint: the file is damaged"
    )


def test_external_data_of_another_size(tmp_path: Path) -> None:
    assert error_of(FrontendError, external(tmp_path, "w.bin", X.tobytes(), length=12)) == (
        'external data of 12 bytes for a tensor of 24 bytes\n  | ONNX tensor "x1"'
    )


def test_external_data_without_a_folder(tmp_path: Path) -> None:
    data = external(tmp_path, "w.bin", X.tobytes()).read_bytes()
    assert error_of(FrontendError, data) == (
        "the model stores tensors in the file 'w.bin', but was not given as a path\n"
        '  | ONNX tensor "x1"\n'
        "  = hint: call from_onnx with the path of the .onnx file, beside which that file lies"
    )


def test_weight_with_too_few_bytes() -> None:
    model = one_node("Add", X, constants={1: X})
    model.graph.initializer[0].raw_data = X.tobytes()[:-4]
    assert error_of(FrontendError, model) == (
        "the data of a tensor does not fill its shape (2, 3) of float32\n"
        '  | ONNX tensor "x1"\n'
        "  = hint: the file is damaged"
    )


def test_weight_of_an_element_type_that_is_not_known() -> None:
    model = one_node("Add", X, constants={1: X})
    model.graph.initializer[0].CopyFrom(helper.make_tensor("x1", TensorProto.COMPLEX64, [1], [1.0]))
    assert error_of(FrontendError, model) == (
        f"element type 'complex64' is not supported\n  | ONNX tensor \"x1\"\n  = hint: supported: {', '.join(DTYPES)}"
    )
