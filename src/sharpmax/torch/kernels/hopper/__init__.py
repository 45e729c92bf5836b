"""Kernels for Hopper GPUs, written in Gluon: three warpgroups compute while a warp copies ahead.

A program holds 192 rows, 64 for each warpgroup, and streams tiles of 128 columns past them
through a ring in shared memory. The copying warp fills the ring by the tensor copy engine; each
warpgroup multiplies a tile on the tensor cores while others are at their exponentials. Four
kernels have this form: the row statistics, their gradients by query and by key, and attention
at a given β. They see all keys or those up to the query; other visibility is for Triton's.
"""
