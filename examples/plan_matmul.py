"""A plan for a GPU that is not there: the best schedules of a matrix product, and what the plan promises."""

import anatune

plan = anatune.plan(anatune.matmul(512, 4096, 1024), "rtx3090", top_k=3, distinct=True)

for schedule, prediction in zip(plan.schedules, plan.predictions, strict=True):
    print(f"{prediction.time_s * 1e6:.1f} us  {schedule.describe()}")
print(f"\nguarantee: {plan.guarantee.describe()}")
print(f"{plan.space_size:.3e} schedules, {plan.num_legal:.3e} of them legal; rejected:")
for rule, count in sorted(plan.rejected.items(), key=lambda item: -item[1])[:3]:
    print(f"  {count:.3e} by {rule}")
