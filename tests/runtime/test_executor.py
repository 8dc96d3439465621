"""GraphModule: TVM's calls, and what TVM gets wrong."""

from __future__ import annotations

import json
import re
import threading

import numpy as np
import pytest
from small_model import Model, expected, sample

import minitvm
from minitvm import relay
from minitvm.errors import ConfigError, InputError, LibraryError, TargetError
from minitvm.runtime.executor import GraphModule, create


def module_of(model: Model, threads: int | None = None) -> GraphModule:
    return GraphModule(model[2]["default"](minitvm.cpu(0), threads))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_run_equals_numpy_on_any_number_of_threads(model: Model, threads: int) -> None:
    module = module_of(model, threads)
    for seed in range(3):
        module.run(x=sample(seed))
        for i, want in enumerate(expected(model[1], sample(seed))):
            np.testing.assert_allclose(module.get_output(i).numpy(), want, rtol=1e-5, atol=1e-6)


def test_all_ways_to_set_inputs_and_get_outputs(model: Model) -> None:
    module = module_of(model)
    module.set_input("x", minitvm.nd.array(sample(1)))
    module.run()
    first = module.get_output(0).asnumpy()
    module.set_input(0, sample(2))
    module.run()
    out = minitvm.nd.empty((2, 5))
    assert module.get_output(0, out) is out
    assert not np.array_equal(out.numpy(), first)
    module.set_input(x=sample(1))
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), first)
    np.testing.assert_array_equal(module.get_input("x").numpy(), sample(1))
    assert module.get_input_index("x") == 0 and module.get_input_index("y") == -1
    assert module.get_input_info() == ({"x": (2, 6)}, {"x": "float32"})
    assert module.get_num_inputs() == 1 + len(model[2].params) and module.get_num_outputs() == 2


def test_an_output_is_not_overwritten_by_the_next_run_and_an_input_never(model: Model) -> None:
    module, x = module_of(model), sample(3)
    module.run(x=x)
    kept, copy = module.get_output(0), module.get_output(0).numpy()
    module.run(x=sample(4))
    np.testing.assert_array_equal(kept.numpy(), copy)
    np.testing.assert_array_equal(x, sample(3))


def test_strided_and_read_only_arrays_and_lists_are_taken(model: Model) -> None:
    module, x = module_of(model), sample(5)
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    wide.setflags(write=False)
    for value in (wide, x.tolist(), np.asfortranarray(x), x.astype(">f4")):
        module.run(x=value)
        np.testing.assert_allclose(module.get_output(1).numpy(), expected(model[1], x)[1], rtol=1e-5, atol=1e-6)


UNKNOWN = """the model has no input 'X'
  = hint: did you mean 'x'? its inputs are: x"""
DTYPE = """input 'x' is float64, the model expects float32
  | %x: Tensor[(2, 6), float32]
  = hint: convert it: array.astype('float32')"""
RANK = """input 'x' has rank 1, shape (12,); the model expects rank 2
  | %x: Tensor[(2, 6), float32]
  = hint: add or remove dimensions, for example array[np.newaxis] for a batch of one"""
SHAPE = """input 'x' has shape (6, 2), the model expects (2, 6)
  | %x: Tensor[(2, 6), float32]
  = hint: reshape or resize the array, or compile the model for this shape"""
TEXT = """input 'x' is a str that is no array of float32: could not convert string to float: 'cat'
  = hint: give a numpy array"""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"X": sample(0)}, UNKNOWN),
        ({"x": sample(0).astype("float64")}, DTYPE),
        ({"x": sample(0).reshape(12)}, RANK),
        ({"x": sample(0).T}, SHAPE),
        ({"x": "cat"}, TEXT),
    ],
)
def test_wrong_inputs_say_so_and_leave_the_module_usable(model: Model, given: dict[str, object], text: str) -> None:
    module = module_of(model)
    with pytest.raises(InputError) as error:
        module.set_input(**given)
    assert str(error.value) == text
    with pytest.raises(InputError):
        module.run(**given)
    module.run(x=sample(6))
    np.testing.assert_allclose(module.get_output(0).numpy(), expected(model[1], sample(6))[0], rtol=1e-5, atol=1e-6)


def test_one_wrong_input_sets_none(model: Model) -> None:
    module = GraphModule(minitvm.build(model[0])["default"](minitvm.cpu(0)))
    with pytest.raises(InputError):
        module.set_input(x=sample(0), w=np.zeros((5, 7), "float32"))
    with pytest.raises(InputError) as error:
        module.run()
    assert str(error.value) == (
        "inputs not set: x, w, b\n  = hint: give every input, in run(name=array) or by set_input(name, array)"
    )


def test_a_missing_input_is_an_error_before_anything_runs(model: Model) -> None:
    with pytest.raises(InputError, match=r"^input not set: x\n"):
        module_of(model).run()


def test_numbers_out_of_range(model: Model) -> None:
    module = module_of(model)
    module.run(x=sample(0))
    with pytest.raises(InputError, match=r"^the model has no output number 2\n  = hint: it has 2$"):
        module.get_output(2)
    with pytest.raises(InputError, match=r"^the model has no input number 9\n"):
        module.set_input(9, sample(0))
    with pytest.raises(
        InputError, match=r"^output 0 is float32 of shape \(2, 5\), the array to fill is float32 of shape"
    ):
        module.get_output(0, minitvm.nd.empty((5, 2)))


def test_load_params_and_share_params(model: Model) -> None:
    module, params, _ = model
    library = minitvm.build(module)
    data = relay.save_param_dict(params)
    one, two = (GraphModule(library["default"](minitvm.cpu(0))) for _ in range(2))
    one.load_params(data)
    two.share_params(one, data)
    for running in (one, two):
        running.run(x=sample(8))
        np.testing.assert_allclose(running.get_output(0).numpy(), expected(params, sample(8))[0], rtol=1e-5, atol=1e-6)


def test_a_parameter_replaced_in_one_module_stays_in_the_others(model: Model) -> None:
    library = model[2]
    one, two = module_of(model), module_of(model)
    before = {name: value.copy() for name, value in library.params.items()}
    for name, value in library.params.items():
        one.set_input(name, np.zeros_like(value))
    for running in (one, two):
        running.run(x=sample(9))
    np.testing.assert_allclose(one.get_output(0).numpy(), np.full((2, 5), 0.2), rtol=1e-5)
    np.testing.assert_allclose(two.get_output(0).numpy(), expected(model[1], sample(9))[0], rtol=1e-5, atol=1e-6)
    for name, value in before.items():
        np.testing.assert_array_equal(library.params[name], value)


def test_a_parameter_replaced_in_the_library_is_checked(model: Model) -> None:
    library = minitvm.build(model[0], "llvm", model[1])
    name = next(n for n, value in library.params.items() if value.ndim == 2)
    shape, right = library.params[name].shape, library.params[name]
    library.params[name] = np.zeros((1, 1), "float32")
    with pytest.raises(
        InputError, match=rf"^input '{name}' has shape \(1, 1\), the model expects {re.escape(str(shape))}"
    ):
        library["default"]()
    library.params[name] = np.asfortranarray(right)
    running = GraphModule(library["default"]())
    running.run(x=sample(3))
    np.testing.assert_allclose(running.get_output(0).numpy(), expected(model[1], sample(3))[0], rtol=1e-5, atol=1e-6)


def test_created_from_its_parts(model: Model) -> None:
    graph_json, lib, _ = model[2]
    module = create(graph_json, lib, minitvm.cpu(0))
    module.run(x=sample(1))
    np.testing.assert_allclose(module.get_output(1).numpy(), expected(model[1], sample(1))[1], rtol=1e-5, atol=1e-6)
    other = json.loads(graph_json)
    other["nodes"][0]["name"] = "y"
    with pytest.raises(LibraryError, match=r"^the graph JSON is not the one that the library was built from\n"):
        create(json.dumps(other), lib, minitvm.cpu(0))


def test_create_executor_gives_a_function(model: Model) -> None:
    module, params, _ = model
    run = relay.build_module.create_executor("graph", module, minitvm.cpu(0), "llvm").evaluate()
    for got, want in zip(run(minitvm.nd.array(sample(2)), **params), expected(params, sample(2)), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match=r"^there is no executor 'jit'\n  = hint: the kinds are 'graph', 'vm', "):
        relay.create_executor("jit", module)


def test_one_library_serves_many_threads(model: Model) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        module = module_of(model, threads=1 + seed % 2)
        for i in range(20):
            x = sample(100 * seed + i)
            module.run(x=x)
            if not np.allclose(module.get_output(0).numpy(), expected(model[1], x)[0], rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_benchmark_counts_runs_and_prints_milliseconds(model: Model) -> None:
    module = module_of(model)
    result = module.benchmark(minitvm.cpu(0), repeat=4, number=3, end_to_end=True, x=sample(0))
    assert len(result.results) == 4 and 0 < result.min <= result.median <= result.max
    assert str(result).splitlines()[0] == "Execution time summary:"
    assert module.time_evaluator("run", minitvm.cpu(0), number=2, repeat=3)().mean > 0
    with pytest.raises(ConfigError, match=r"^the module runs on cpu\(0\), not on cpu\(1\)$"):
        module.benchmark(minitvm.cpu(1))


def test_a_device_that_does_not_exist(model: Model) -> None:
    with pytest.raises(TargetError, match=r"^there is no device cpu\(1\)\n  = hint: use minitvm.cpu\(0\)$"):
        model[2]["default"](minitvm.cpu(1))
    with pytest.raises(TargetError, match=r"^the library was compiled for 'llvm', it cannot run on cuda\(0\)\n"):
        model[2]["default"](minitvm.device("cuda"))


def test_a_result_that_is_an_input_or_a_constant_and_nothing_at_all() -> None:
    x = relay.var("x", shape=(3,))
    same = relay.const(np.arange(3, dtype="int64"))
    library = minitvm.build(relay.Function([x], relay.Tuple([x, same, relay.reshape(x, newshape=(1, 3)), x])))
    module = GraphModule(library["default"]())
    value = np.array([1.5, np.nan, -0.0], "float32")
    module.run(x=value)
    got = [module.get_output(i).numpy() for i in range(4)]
    np.testing.assert_array_equal(got[0], value)
    np.testing.assert_array_equal(got[1], [0, 1, 2])
    np.testing.assert_array_equal(got[2], value[None])
    np.testing.assert_array_equal(got[3], value)
    empty = GraphModule(minitvm.build(relay.Function([], relay.Tuple([])))["default"]())
    empty.run()
    assert empty.get_num_outputs() == 0


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), ()])
def test_zero_size_and_rank_zero_tensors(shape: tuple[int, ...]) -> None:
    x = relay.var("x", shape=shape)
    module = GraphModule(minitvm.build(relay.Function([x], relay.exp(relay.add(x, x))))["default"]())
    value = np.random.default_rng(3).standard_normal(shape).astype("float32")
    module.run(x=value)
    np.testing.assert_allclose(module.get_output(0).numpy(), np.exp(value + value), rtol=1e-5)


def test_inputs_and_results_in_memory_of_the_callers(model: Model) -> None:
    module, place = GraphModule(model[2]["default"]()), minitvm.nd.empty((2, 5))
    value = sample(1)
    module.set_input_zero_copy("x", value)
    module.set_output_zero_copy(0, place)
    for seed in (1, 2):
        value[...] = sample(seed)
        module.run()
        np.testing.assert_allclose(place.numpy(), expected(model[1], sample(seed))[0], rtol=1e-5, atol=1e-6)
    module.run(x=sample(3))
    np.testing.assert_array_equal(value, sample(2))
    with pytest.raises(InputError, match=r"^input 'x' cannot be read where it is\n"):
        module.set_input_zero_copy("x", np.asfortranarray(sample(1)))
    with pytest.raises(InputError, match=r"^output 1 cannot be written where the array is\n  = hint: minitvm.nd.empty"):
        module.set_output_zero_copy(1, np.empty(20, "float32")[::2])
    with pytest.raises(InputError, match=r"^output 1 is float32 of shape \(10,\), the array to fill is float32 of "):
        module.set_output_zero_copy(1, minitvm.nd.empty((11,)))
