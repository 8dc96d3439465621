"""Processors, targets, and what LLVM makes of the emitted text."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import threading
from functools import partial

import numpy as np
import pytest
from hand_written import packed, tiled_matmul
from native_kernel import run_native

import minitvm
from minitvm import relay
from minitvm.codegen.llvm.compile import (
    _cpu,
    assembly,
    compile_object,
    cpu_of,
    host,
    known_names,
    llvm,
    machine_model,
    optimized_ir,
)
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.llvm.plain_addresses import LARGE, addresses_of
from minitvm.errors import CompilerError, TargetError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    For,
    Kernel,
    LoopExpr,
    LoopKind,
    const,
    loop,
    maximum,
    nest,
    select,
    seq,
    store,
)
from minitvm.target import SHARING, Target, spinning_text

AVX2 = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell"
AVX512 = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512"
LATEST = "avx avx2 avx512f avx512bw avx512vl avx512vnni avxvnni"
NEON = "llvm -mtriple=aarch64-unknown-linux-gnu"


def relu(n: int = 16) -> Kernel:
    x, out = Buffer("x", (n, 16), "float32"), Buffer("out", (n, 16), "float32")
    row = lambda i: loop(16, lambda j: store(out, (i, j), maximum(x[i, j], 0.0)), LoopKind.VECTORIZED)  # noqa: E731
    return Kernel("relu", (x, out), loop(n, row, LoopKind.PARALLEL))


def code_for(kernel: Kernel, target: str) -> str:
    cpu = cpu_of(Target.parse(target))
    return assembly(emit(kernel, machine_model(cpu)), cpu)


def sharing_for(target: str) -> str:
    cpu = cpu_of(Target.parse(target))
    return assembly(spinning_text(SHARING, machine_model(cpu).features), cpu)


# --- targets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "vector_bytes", "registers"),
    [
        (AVX2, 32, 16),
        (AVX512, 64, 32),
        ("llvm -mtriple=x86_64-unknown-linux-gnu", 16, 16),
        (AVX512 + " -mattr=-avx512f", 32, 16),
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mattr=+avx", 32, 16),
        (NEON, 16, 32),
    ],
)
def test_vector_width_comes_from_the_target(target: str, vector_bytes: int, registers: int) -> None:
    cpu = cpu_of(Target.parse(target))
    machine = machine_model(cpu, threads=3)
    assert (cpu.vector_bytes, cpu.vector_registers) == (vector_bytes, registers)
    assert (machine.vector_bytes, machine.vector_registers, machine.threads) == (vector_bytes, registers, 3)


def test_plain_llvm_is_the_host() -> None:
    assert cpu_of(Target.parse("llvm")) == host()
    assert cpu_of(Target.parse("llvm -mcpu=native")) == host()
    assert "posix" in machine_model(host()).features


@pytest.mark.parametrize(
    "listed", ["sse2", "avx", "avx avx2 fma", "avx avx2 avxvnni", "avx avx2 avx512f avx512bw", LATEST]
)
def test_features_say_what_llvm_makes_of_them(listed: str) -> None:
    """Which is asked where a processor goes by its name alone."""
    x86 = "x86_64-unknown-linux-gnu", "x86-64", ",".join(f"+{name}" for name in listed.split())
    assert _cpu(*x86, frozenset(listed.split())) == _cpu(*x86)


def test_the_hosts_features_are_listed() -> None:
    assert _cpu(host().triple, host().name, llvm.get_host_cpu_features().flatten()) == host()


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=native", AVX2, AVX512, AVX512 + " -mattr=-avx512f", NEON])
def test_processor_described_by_its_own_words_is_the_same(target: str) -> None:
    cpu = cpu_of(Target.parse(target))
    again = f"llvm -mtriple={cpu.triple} -mcpu={cpu.name}" + (f" -mattr={cpu.features}" if cpu.features else "")
    assert cpu_of(Target.parse(again)) == cpu


def test_machine_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = "a64fx" if host().arch == "aarch64" else "x86-64"
    monkeypatch.setenv("MINITVM_CPU", mine)
    assert host().name == mine and host().vector_bytes == 16
    assert cpu_of(Target.parse("llvm")) == host()
    monkeypatch.setenv("MINITVM_CPU", "z80")
    with pytest.raises(TargetError, match="unknown CPU -mcpu=z80"):
        host()


@pytest.mark.parametrize(
    ("options", "tune"),
    [("", ""), (" -mtune=znver3", "znver3"), (" -mtune=haswell", ""), (" -mtune=native", "skylake-avx512")],
)
def test_instructions_are_put_in_order_for_the_processor_that_is_named(
    options: str, tune: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host().arch == "x86":
        monkeypatch.setenv("MINITVM_CPU", "skylake-avx512")
        found = cpu_of(Target.parse(AVX2 + options))
        assert (found.name, found.vector_bytes, found.tune) == ("haswell", 32, tune)


def test_without_a_triple_instructions_are_put_in_order_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = ("a64fx", "cortex-a76") if host().arch == "aarch64" else ("znver4", "haswell")
    monkeypatch.setenv("MINITVM_CPU", mine)
    assert cpu_of(Target.parse(f"llvm -mcpu={other}")).tune == mine
    assert cpu_of(Target.parse(f"llvm -mcpu={mine}")).tune == ""


def test_another_order_is_of_the_same_instructions() -> None:
    texts = [code_for(tiled_matmul(12, 32, 64, 8), AVX2 + options) for options in ("", " -mtune=znver4")]
    assert texts[0] != texts[1]
    assert all("zmm" not in text for text in texts)
    assert texts[0].count("vfmadd") == texts[1].count("vfmadd") > 0


def rejected(target: str) -> str:
    with pytest.raises(TargetError) as caught:
        cpu_of(Target.parse(target))
    return str(caught.value)


def test_unknown_cpu_lists_close_names() -> None:
    text = rejected("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx51")
    assert text.startswith("unknown CPU -mcpu=skylake-avx51 for x86_64\n  = hint: did you mean 'skylake-avx512'")


def test_unknown_cpu_to_tune_for_lists_close_names() -> None:
    text = rejected("llvm -mtriple=x86_64-unknown-linux-gnu -mtune=znver33")
    assert text.startswith("unknown CPU -mtune=znver33 for x86_64\n  = hint: did you mean 'znver3'")


def test_unknown_feature_lists_close_names() -> None:
    text = rejected("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -mattr=+avx22")
    assert text.startswith("unknown feature -mattr=+avx22 for x86_64\n  = hint: did you mean 'avx2'")


def test_feature_without_a_sign() -> None:
    assert rejected(AVX2 + " -mattr=avx2") == ("feature 'avx2' of -mattr has no sign\n  = hint: write +avx2 or -avx2")


def test_unknown_triple() -> None:
    text = rejected("llvm -mtriple=abacus-unknown-linux")
    assert text.startswith("LLVM does not know the target triple 'abacus-unknown-linux'\n  | ")
    assert text.endswith(
        "\n  = hint: a triple is arch-vendor-system, such as x86_64-unknown-linux-gnu or aarch64-linux-gnu"
    )


def test_a_gpu_is_no_cpu() -> None:
    assert rejected("cuda") == "target 'cuda' is not a CPU\n  = hint: use a target that begins with 'llvm'"


def test_names_are_listed_by_architecture() -> None:
    cpus, features = known_names("aarch64-unknown-linux-gnu")
    assert {"cortex-a72", "generic"} <= cpus
    assert {"neon", "sve"} <= features


# --- machine code ---------------------------------------------------------------------------------------------


def test_registers_of_each_target() -> None:
    assert "ymm" in code_for(relu(), AVX2)
    assert "zmm" in code_for(relu(), AVX512)
    assert "fcmlt" in code_for(relu(), NEON)


def test_relu_is_one_instruction() -> None:
    """It keeps -0.0; without AVX512 LLVM makes a comparison and a mask of that."""
    text = code_for(relu(), AVX512)
    assert text.count("vmaxps") == 1  # 16 floats
    assert not any(word in text for word in ("vcmp", "vblend", "vand"))
    text = code_for(relu(), AVX2)
    assert text.count("vcmp") == text.count("vandps") == 2 and "vblend" not in text


@pytest.mark.parametrize(
    ("target", "rows", "lanes", "register"), [(AVX2, 6, 8, "ymm"), (AVX512, 13, 16, "zmm"), (NEON, 8, 4, "v")]
)
def test_accumulators_stay_in_registers(target: str, rows: int, lanes: int, register: str) -> None:
    """The inner loop multiplies and adds; it stores nothing, so nothing is spilled.

    Of 14 rows, 28 registers of 32, LLVM spills one or none as it happens.
    """
    text = code_for(tiled_matmul(rows * 2, lanes * 4, 16, lanes, rows), target)
    inner = max(loops_of(text), key=lambda body: sum("fmadd" in i or "fmla" in i for i in body))
    products = [i for i in inner if "fmadd" in i or "fmla" in i]
    assert len(products) == rows * 2 * 4
    assert all(register in i for i in products)
    assert not any("sp" in i.replace("vbroadcastss", "") or ", %rbp" in i for i in inner)
    stores = [i for i in inner if i.startswith(("str", "stp")) or (i.startswith("vmov") and i.endswith(")"))]
    assert stores == []


def networks_layers() -> relay.Function:
    """Convolutions of 3 x 3 and 1 x 1, a dense layer and a batched product, as networks have them."""
    image = relay.var("image", shape=(1, 64, 56, 56))
    rows, heads = relay.var("rows", shape=(128, 768)), relay.var("heads", shape=(12, 128, 64))
    kernels = [relay.const(np.ones(shape, "float32")) for shape in ((64, 64, 3, 3), (256, 64, 1, 1), (3072, 768))]
    wide = relay.nn.conv2d(image, kernels[0], kernel_size=(3, 3), padding=(1, 1), channels=64)
    more = relay.nn.conv2d(image, kernels[1], kernel_size=(1, 1), channels=256)
    return relay.Function(
        [image, rows, heads],
        relay.Tuple([wide, more, relay.nn.dense(rows, kernels[2]), relay.nn.batch_matmul(heads, heads)]),
    )


@pytest.mark.parametrize("target", [AVX2, AVX512])
def test_kernels_of_networks_keep_their_sums_in_registers(target: str) -> None:
    report = minitvm.build(networks_layers(), target).report
    texts = [assembly(report.kernel(name).text("llvm"), cpu_of(Target.parse(target))) for name in report.groups]
    inner = [body for text in texts for body in loops_of(text) if sum("fmadd" in i or "fmla" in i for i in body) >= 8]
    assert len(inner) >= 4
    for body in inner:
        spills = [i for i in body if "(%rsp)" in i and i.startswith("vmov")]
        assert spills == [], body


def loops_of(text: str) -> list[list[str]]:
    """Straight-line bodies that jump back to their own label."""
    found, label, body = [], "", []
    for line in (raw.split("#")[0].split("//")[0].strip().replace("\t", " ") for raw in text.splitlines()):
        if line.endswith(":"):
            label, body = line[:-1], []
        elif line and not line.startswith("."):
            body.append(line)
            if label and line.endswith(f" {label}"):
                found.append(list(body))
    return found


def test_optimized_text_is_ir() -> None:
    text = optimized_ir(emit(relu(), machine_model(host())), host())
    assert "define void @relu(" in text
    assert "fcmp" in text


def test_text_that_is_no_module() -> None:
    with pytest.raises(CompilerError) as caught:
        compile_object("define void @f( {", host())
    assert str(caught.value).startswith("LLVM does not accept the module\n  | ")


def test_names_that_llvm_must_quote() -> None:
    x, out = Buffer("x", (4,), "float32"), Buffer("out", (4,), "float32")
    kernel = Kernel('odd "name" %1', (x, out), loop(4, lambda i: store(out, (i,), x[i] + 1.0)))
    text = emit(kernel, machine_model(host()))
    assert '@"odd\\20\\22name\\22\\20\\251"' in text
    compile_object(text, host())


def test_threads_compile_at_the_same_time() -> None:
    texts = [emit(relu(n), machine_model(host())) for n in range(2, 14)]
    alone = [compile_object(t, host()) for t in texts]
    found: dict[int, bytes] = {}

    def work(part: int) -> None:
        for i in range(part, len(texts), 3):
            found[i] = compile_object(texts[i], host())

    team = [threading.Thread(target=work, args=(p,)) for p in range(3)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert [found[i] for i in range(len(texts))] == alone


def test_every_target_compiles_guards_barriers_and_types() -> None:
    """One kernel with most of what the emitter can say."""
    x, out = Buffer("x", (40,), "float16"), Buffer("out", (48,), "float16")
    part = Buffer("part", (48,), "int8")
    first = loop(48, lambda i: store(part, (i,), select(i < 40, x[i], 1.0).astype("int8")), LoopKind.VECTORIZED)
    second = loop(
        48, lambda i: store(out, (i,), (part[47 - i] // const(3, "int8")).astype("float16")), LoopKind.PARALLEL
    )

    kernel = Kernel("mixed", (x, out), Alloc(part, seq(first, Barrier(), second)))
    windows, plain = "llvm -mtriple=x86_64-pc-windows-msvc", "llvm -mtriple=x86_64-unknown-linux-gnu"
    for target in (AVX2, AVX512, NEON, plain, windows):
        assert "mixed" in code_for(kernel, target) and "minitvm.barrier" in code_for(kernel, target)
    assert "sched_yield" in sharing_for(AVX2) and "pause" in sharing_for(AVX2)
    assert "sched_yield" not in sharing_for(windows) and "SwitchToThread" in sharing_for(windows)
    assert "yield" in sharing_for(NEON)
    a = np.random.default_rng(0).integers(-100, 100, 40).astype(np.float16)
    full = np.concatenate([a, np.ones(8)]).astype(np.int8)
    np.testing.assert_array_equal(run_native(kernel, a, threads=2)[0], (full[::-1] // 3).astype(np.float16))


def test_matmul_on_the_host_by_its_own_width() -> None:
    lanes = host().vector_bytes // 4
    a, b = (
        np.random.default_rng(i).standard_normal(s).astype(np.float32)
        for i, s in enumerate([(12, 64), (64, 4 * lanes)])
    )
    (found,) = run_native(tiled_matmul(12, 4 * lanes, 64, lanes), *packed(a, b, 6, 2 * lanes))
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-5)


def test_nested_parallel_loops_need_one_division() -> None:
    x, out = Buffer("x", (8, 4), "float32"), Buffer("out", (8, 4), "float32")
    kernel = Kernel("flat", (x, out), nest((8, 4), lambda i, j: store(out, (i, j), x[i, j] * 2.0), LoopKind.PARALLEL))
    text = emit(kernel, machine_model(host()))
    assert text.count("phi i64") == 1


def eight_cast(x: Buffer, y: Buffer, i: LoopExpr) -> For:
    return loop(8, lambda j: store(y, (i * 8 + j,), x[i * 8 + j].astype(y.dtype)), LoopKind.VECTORIZED)


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="memory is asked of Linux")
def test_compiling_holds_no_memory() -> None:
    """LLVM's standard pipeline holds 0.25 MB a run: 37 MB here."""
    text, cpu = emit(relu(), machine_model(host())), host()
    for _ in range(50):
        compile_object(text, cpu)
    before = held()
    for _ in range(150):
        compile_object(text, cpu)
    assert held() - before < 8 << 20


def held() -> int:
    """Bytes of memory of its own, wherever they are: files come and go as others need memory."""
    gc.collect()
    sizes = dict(line.split(":") for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return sum(int(sizes[name].split()[0]) << 10 for name in ("RssAnon", "VmSwap"))


def test_float16_without_the_instructions() -> None:
    """A processor that cannot convert float16 does so in the kernel itself, to the bit."""
    plain = cpu_of(Target.parse("llvm -mcpu=x86-64")) if host().arch == "x86" else host()
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    others = np.float32([65519.9, 65520, 1e30, -1e-30, 2.0**-25, 2.0**-25 * 1.01])
    finite = np.concatenate([every.astype(np.float32), others])
    between = np.concatenate([finite, np.nextafter(finite, np.float32(0)), np.nextafter(finite, np.float32(np.inf))])
    for source, to in ((every, "float32"), (np.resize(between, -(-between.size // 8) * 8), "float16")):
        x, y = Buffer("x", (source.size,), source.dtype.name), Buffer("y", (source.size,), to)
        body = loop(source.size // 8, partial(eight_cast, x, y))
        with np.errstate(all="ignore"):
            want = source.astype(to)
        for cpu in (plain, host()):
            (found,) = run_native(Kernel("halves", (x, y), body), source, machine=machine_model(cpu), cpu=cpu)
            np.testing.assert_array_equal(found, want)


def test_others_in_the_process_get_llvm_as_it_is() -> None:
    """The option that minitvm compiles large modules with holds no longer than that."""
    a, b = Buffer("a", (64, 64), "float32"), Buffer("b", (64, 64), "float32")
    rows = loop(64, lambda i: loop(64, lambda j: store(b, (i, j), a[j, i] * 2 + a[i, j])))
    text = emit(Kernel("other", (a, b), rows), machine_model(host()))

    def others() -> str:
        machine = llvm.Target.from_triple(host().triple).create_target_machine(opt=3)
        return str(machine.emit_assembly(llvm.parse_assembly(text, context=llvm.create_context())))

    before = others()
    for module in ("\n  ret void" * LARGE, text):
        with addresses_of(module), addresses_of(module):
            assert (others() == before) == (module == text)
        assert others() == before
    compile_object(text, host())
    assert others() == before


def test_modules_that_want_the_pass_wait_for_those_that_do_not() -> None:
    inside: list[str] = []

    def small() -> None:
        with addresses_of(""):
            inside.append("small")

    with addresses_of("\n  ret void" * LARGE):
        other = threading.Thread(target=small)
        other.start()
        inside.append("large")
    other.join()
    assert inside == ["large", "small"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_that_it_has_not() -> None:
    """One that forked while another thread compiled a large module compiles a small one."""
    with addresses_of("\n  ret void" * LARGE):
        child = os.fork()
        if not child:
            signal.alarm(20)  # kills it
            with addresses_of(""):
                os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
