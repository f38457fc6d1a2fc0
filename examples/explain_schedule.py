"""Your own schedule judged: its predicted time beside the best one's, what binds it, and the rule that one breaks."""

import anatune

workload = anatune.matmul(512, 4096, 1024)
space = anatune.space(workload, "rtx3090")
print(f"a schedule is {', '.join(space.axes)}, one of {space.size:.3e}")

# tiles of i and j: block x vthread x thread x reg_outer x reg_inner; of k: k0 x k1 x k2
mine = space.schedule(
    tiles={"i": (8, 2, 16, 2, 1), "j": (32, 2, 16, 4, 1), "k": (64, 4, 4)}, unroll=512, vector={"A": 4, "B": 4}
)
too_large = space.schedule(
    tiles={"i": (1, 1, 64, 8, 1), "j": (32, 1, 16, 8, 1), "k": (16, 64, 1)}, unroll=512, vector={"A": 4, "B": 4}
)
table = anatune.predict(workload, "rtx3090", [mine, too_large])
print(table[["time_s", "legal", "rule"]].to_string())

plan = anatune.plan(workload, "rtx3090", top_k=1)
print(f"\nmine takes {table.time_s[0] / plan.predictions[0].time_s:.2f} times as long as the best one. About that:\n")
print(plan.explain())
