"""Networks built without ONNX, random parameters for them, and checks for passes and numbers (Relay's names)."""

from minitvm.testing import (
    dcgan,
    densenet,
    dqn,
    inception,
    init,
    lstm,
    mlp,
    mobilenet,
    resnet,
    squeezenet,
    transformer,
    vgg,
)
from minitvm.testing import inception as inception_v3
from minitvm.testing.checks import (
    assert_allclose,
    assert_close_to_scale,
    assert_same_numbers,
    check_rewrite,
    check_unchanged,
    run_infer_type,
    run_opt_pass,
)
from minitvm.testing.init import create_workload
from minitvm.testing.targets import (
    ctx_list,
    device_enabled,
    enabled_targets,
    exclude_targets,
    fixture,
    known_failing_targets,
    main,
    parameter,
    parameters,
    parametrize_targets,
    requires_cuda,
    requires_cudagraph,
    requires_gpu,
    requires_llvm,
    requires_tensorcore,
    skip_if_32bit,
    skip_if_wheel_test,
    slow,
    uses_gpu,
)
