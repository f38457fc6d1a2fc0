"""A tuner of your own: which of its schedules deserve a run, in which order, and why the others do not."""

import itertools

import anatune

workload = anatune.matmul(512, 4096, 1024)
kept = anatune.prune(workload, "rtx3090", keep=16)
print(kept)
for schedule in itertools.islice(kept, 3):  # best predicted first; each is what your generator needs
    print(schedule.to_json()[:100], "...")

mine = anatune.space(workload, "rtx3090").schedule(
    tiles={"i": (32, 1, 16, 1, 1), "j": (256, 1, 16, 1, 1), "k": (64, 16, 1)}, unroll=0, vector={"A": 1, "B": 1}
)
print(f"\n{mine.describe()}: {kept.explain(mine).text}")
