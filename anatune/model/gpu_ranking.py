"""placeholder"""
from __future__ import annotations
import numpy as np
from anatune.model.evaluation import Guarantee, Ranking

def rank_gpu(model, top_k, time_limit_s):
    pts = np.unique(model.space.sample_points(20000, 0), axis=0)
    t, r = model.times(pts)
    o = np.argsort(t, kind="stable")[:top_k]
    return Ranking(pts[o], Guarantee("best_found", 1.0, len(pts), 0), None, None)
