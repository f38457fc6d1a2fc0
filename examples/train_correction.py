"""What measurements teach the model: records, a correction that is judged on workloads left out, plans that use it.

The device of this example is pretended: its kernels are the slower the less they unroll, which the model does not know.
Real records come from `anatune tune`, or from other tuners' logs (`anatune records import`); then all this is
`anatune records train`.
"""

from pathlib import Path

import numpy as np

import anatune
from anatune.records.store import RecordStore
from anatune.templates import make_model
from anatune.tuning.training import families_of, judge, train

hardware = anatune.hardware("rtx3090")
with RecordStore("pretended.sqlite") as store:
    for shape in ((256, 256, 256), (512, 128, 256), (128, 512, 256)):
        workload = anatune.matmul(*shape)
        model = make_model(workload, hardware, "cuda")
        points = np.unique(model.space.sample_points(60, 1), axis=0)
        unrolled = points[:, list(model.space.columns).index("unroll")] >= 512
        session = store.new_session(workload, hardware, 1, "random", 0)
        for number, (point, time_s) in enumerate(zip(points, model.times(points)[0], strict=True)):
            measured = float(time_s) * (1.0 if unrolled[number] else 4.0)
            measurement = anatune.Measurement(anatune.Outcome.OK, times_s=(measured,))
            store.append(session, anatune.Trial(model.space.schedule_of(point), measurement, number=number))

with RecordStore("pretended.sqlite", read_only=True) as store:
    (family,) = families_of(store.iterate())
judgement = judge(family, [family])
print(f"rank correlation on workloads left out: {judgement.plain.spearman:.2f} by the model alone,")
print(f"{judgement.by_workload.spearman:.2f} with the correction; it helps: {judgement.helps}")

folder = train(family, judgement, "pretended.sqlite", Path("correction"))
plan = anatune.plan(anatune.matmul(384, 384, 256), hardware, top_k=1, correction=folder)
print(f"{plan.correction}: {plan.best.describe()}")
