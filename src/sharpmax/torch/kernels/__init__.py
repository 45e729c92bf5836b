"""GPU kernels: they know tensors, not policies or models. Importing any of them needs Triton."""
