"""The Hopper kernels compile, on a machine without a GPU too; what they compute needs one."""

import os
import subprocess
import sys

PROGRAM = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from sharpmax.torch.kernels.hopper.gradients import grad_key_kernel, grad_query_kernel
from sharpmax.torch.kernels.hopper.statistics import statistics_kernel
from sharpmax.torch.kernels.hopper.tempered import tempered_kernel


def tiles(shape, name="bf16", dtype=gl.bfloat16):
    return f"tensordesc<{name}{shape},{gl.NVMMASharedLayout.get_default_for(shape, dtype)!r}>"


rows, columns = tiles([1, 1, 64, 64]), tiles([1, 1, 128, 64])
numbers = tiles([1, 128], "fp32", gl.float32)
constants = {"GROUP": 2, "CAUSAL": True, "STAGES": 2, "REGISTERS": 160, "num_warps": 4}
for kernel, types in [
    (statistics_kernel, [rows, columns, *["*fp32"] * 3, *["i32"] * 4, "fp32", "fp32"]),
    (
        tempered_kernel,
        [rows, columns, columns, "*fp32", "*fp32", "*bf16", "*fp32", *["i32"] * 5, "fp32"],
    ),
    (grad_query_kernel, [rows, columns, "*fp32", "*bf16", *["i32"] * 6, "fp32", "fp32"]),
    (grad_key_kernel, [columns, rows, numbers, "*bf16", *["i32"] * 5, "fp32", "fp32"]),
]:
    names = kernel.arg_names
    types = iter(types)
    signature = {name: "constexpr" if name in constants else next(types) for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, signature, values)
    compiled = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert "wgmma" in compiled.asm["ptx"]
    print("compiled", names[0])
"""


def test_hopper_kernels_compile(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.stdout.count("compiled") == 4, done.stderr
