from __future__ import annotations

CLBLAST: dict

class Ordered:
    space: Any
    def tune(self, searchspace: _Searchspace, runner: _Runner, tuning_options: _Options) -> Results: ...

class PrunedSpace:
    configs: list[dict[str, Value]]
    fit: Any
    hardware: Any
    kept_params: dict[str, list[Value]]
    num_configs: Any
    num_legal: Any
    parameters: tuple[str, ...]
    predicted_s: Floats
    start: list[Value]
    tune_params: Any
    def __len__(self) -> int: ...
    def explain(self, *values: Value, **config: Value) -> Verdict: ...
    def keeps(self, *values: Value, **config: Value) -> bool: ...
    def population(self, count: int) -> list[list[Value]]: ...

class Within:
    def tune(self, searchspace: _Searchspace, runner: _Runner, tuning_options: _Options) -> Results: ...

def clblast_gemm(m: int, n: int, k: int) -> Workload: ...

def import_kernel_tuner(module: str = '') -> ModuleType: ...

def prune(workload: Workload, hw: GpuLike, tune_params: TuneParams, *, names: Names = ..., keep: float = 0.05, restrictions: object = None, correction: str | Path = 'auto', spread: float | str = 'auto') -> PrunedSpace: ...

def restrict(workload: Workload, hw: GpuLike, tune_params: TuneParams, *, names: Names = ..., keep: float = 0.05, restrictions: object = None, correction: str | Path = 'auto', spread: float | str = 'auto') -> Callable[..., bool]: ...
