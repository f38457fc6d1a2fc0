"""Tuning on this CPU: four trials of a matrix product, recorded, and the kernel that came out of them."""

import numpy as np

import anatune

workload = anatune.matmul(128, 256, 128)
result = anatune.tune(workload, "host", trials=4, threads=1, records="example.sqlite")
for trial in result.trials:
    time_s = trial.measurement.time_s
    print(f"{trial.number:2} {trial.measurement.outcome.value:6} {'' if time_s is None else f'{time_s * 1e6:.1f} us'}")

kernel = anatune.build(result.best, threads=1)
a, b = (np.random.default_rng(0).random(shape, dtype=np.float32) for shape in ((128, 128), (128, 256)))
print(f"\n{result.best.describe()}\nlargest error {np.abs(kernel(a, b) - a @ b).max():.1e}; records: example.sqlite")
