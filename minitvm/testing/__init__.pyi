# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm.testing import dcgan as dcgan
from minitvm.testing import densenet as densenet
from minitvm.testing import dqn as dqn
from minitvm.testing import inception as inception
from minitvm.testing import init as init
from minitvm.testing import lstm as lstm
from minitvm.testing import mlp as mlp
from minitvm.testing import mobilenet as mobilenet
from minitvm.testing import resnet as resnet
from minitvm.testing import squeezenet as squeezenet
from minitvm.testing import transformer as transformer
from minitvm.testing import vgg as vgg
from minitvm.testing import inception as _inception_v3
inception_v3 = _inception_v3
from minitvm.testing.checks import assert_allclose as assert_allclose
from minitvm.testing.checks import assert_close_to_scale as assert_close_to_scale
from minitvm.testing.checks import assert_same_numbers as assert_same_numbers
from minitvm.testing.checks import check_rewrite as check_rewrite
from minitvm.testing.checks import check_unchanged as check_unchanged
from minitvm.testing.checks import run_infer_type as run_infer_type
from minitvm.testing.checks import run_opt_pass as run_opt_pass
from minitvm.testing.init import create_workload as create_workload
from minitvm.tvm.relay import registered as _temp_op_attr
temp_op_attr = _temp_op_attr
