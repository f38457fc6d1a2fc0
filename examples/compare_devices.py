"""A fleet: the best schedule of one layer on each of some devices, and one plan for a range of batches."""

import anatune

layer = anatune.matmul(128, 768, 768)
for name in ("rtx3090", "a100_sxm", "h100_sxm", "xeon_gold_6230r"):
    plan = anatune.plan(layer, name, top_k=1)
    share = layer.flop / plan.predictions[0].time_s / plan.hardware.compute.fp32_peak_flop_per_s
    print(f"{name:16} {plan.predictions[0].time_s * 1e6:7.1f} us  {share:4.0%} of peak  {plan.best.describe()}")

# A kernel takes the extent when it is called; the loss against single plans is proven for every extent of the range.
ranged = anatune.plan_range("matmul 1,2,4,8,16x768x768", "rtx3090", kernels=2)
print(
    f"\n{len(ranged.programs)} kernels for 1 to 16 rows lose at most {ranged.loss:.1%} (at {ranged.worst_extent} rows)"
)
