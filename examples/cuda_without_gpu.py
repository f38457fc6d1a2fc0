"""A GPU kernel without a GPU: its CUDA C, the registers that the compiler gives it, and a run of it on the CPU."""

import anatune
from anatune.codegen.cuda.lower import cuda_kernel

plan = anatune.plan(anatune.matmul(64, 64, 64), "a100", top_k=1)

source = cuda_kernel(plan.best).source
start = source.index("__global__")
print(source[start : start + 600], "...\n")

facts = anatune.inspect(plan.best)  # NVRTC: neither a GPU nor nvcc is needed
print({name: facts[name] for name in ("registers", "shared_bytes", "spill_bytes") if name in facts})

checked = anatune.verify(plan.best)  # the same text runs on the CPU: races, stray accesses, wrong sums are found
print(f"right: {checked.ok}; largest error {checked.max_rel_error:.1e}")
