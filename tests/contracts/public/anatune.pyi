from __future__ import annotations

class AnatuneError(Exception):
    ...

class CompiledModel:
    summary: Any
    def __call__(self, *inputs: Any) -> Any: ...
    def benchmark(self, *inputs: Any, runs: int = 30) -> dict[str, float]: ...
    def prepared(self, *inputs: Any) -> Callable[[], Any]: ...
    def profile(self, *inputs: Any, repeats: int = 10) -> dict[str, float]: ...
    def random_inputs(self, seed: int = 0) -> list[np.ndarray[Any, np.dtype[Any]]]: ...
    def report(self, *, measure: bool = False) -> str: ...
    def save(self, path: str | Path) -> None: ...

class CpuSpace(Space):
    axes: tuple[str, ...]
    choices: Any
    columns: tuple[str, ...]
    dot: DotGroup | None
    extents: dict[str, int]
    hardware: CpuSpec
    lanes: Any
    levels: Any
    listed: Integers | None
    loop_tables: LoopTables
    max_kernel: int
    most_inner: Mapping[str, int]
    must_pack: tuple[str, ...]
    orders: dict[str, tuple[tuple[str, ...], ...]]
    own_options: Mapping[str, OptionValue]
    packable: tuple[str, ...]
    packed_ahead: tuple[str, ...]
    pairable: tuple[str, ...]
    parts: tuple[Part, ...]
    places: tuple[list[int], ...]
    radices: tuple[int, ...]
    reduction_order: tuple[str, ...]
    simd_axis: str
    size: int
    template: Any
    windows: tuple[str, ...]
    workload: Any
    def decode(self, coordinates: Integers) -> Integers: ...
    def encode(self, points: Integers) -> Integers: ...
    def lists(self, point: NDArray[np.int64]) -> bool: ...
    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...]: ...
    def point_of(self, schedule: Schedule) -> NDArray[np.int64]: ...
    def points_at(self, numbers: Integers) -> Integers: ...
    def sample(self, count: int, seed: int = 0) -> list[Schedule]: ...
    def sample_points(self, count: int, seed: int, *, legal: bool = True) -> Integers: ...
    def schedule(self, tiles: Mapping[str, Sequence[int]], unroll: int = 0, vector: Mapping[str, int] | None = None, *, calls: Mapping[str, int] | None = None, keep: Mapping[str, str] | None = None, packed: Sequence[str] | None = None, parallel: bool = False) -> Schedule: ...
    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule: ...
    def table(self, axis: str) -> Integers: ...

class CpuSpec(Struct):
    aliases: tuple[str, ...] = ()
    amx: tuple[Literal['tdpbf16ps', 'tdpbusd', 'tdpbssd'], ...] | msgspec.UnsetType = ...
    arch: str
    compute: CpuCompute
    dram: CpuDram
    fp32_lanes: int
    hidden_features: tuple[str, ...] | msgspec.UnsetType = ...
    kind: Literal['cpu']
    l1: CacheLevel
    l2: CacheLevel
    l3: CacheLevel | None = None
    launch: CpuLaunch | None = None
    microkernels: MicrokernelTable | None = None
    model: str
    most_threads: int
    name: str
    schema_version: Literal[1]
    vdpbf16ps: DotInstruction | msgspec.UnsetType = ...
    vendor: str
    vfmaddph: DotInstruction | msgspec.UnsetType = ...
    vpdpbssd: DotInstruction | msgspec.UnsetType = ...
    vpdpbusd: DotInstruction | msgspec.UnsetType = ...
    def dot_instruction(self, name: str) -> DotInstruction | None: ...
    def peak_flop_per_s(self, dtype: str, *, tensor_cores: bool = False) -> float: ...
    def reachable_share(self, *, tensor_cores: bool = False) -> float: ...
    def with_threads(self, threads: int) -> CpuSpec: ...

class GpuKernel:
    operands: tuple[str, ...]
    def __call__(self, *arrays: Array) -> Array: ...
    def random_call(self, seed: int = 0) -> Callable[[], None]: ...

class GpuSpace(Space):
    accuracy: Any
    axes: tuple[str, ...]
    choices: Any
    columns: tuple[str, ...]
    extents: dict[str, int]
    fetch_widths: tuple[int, ...]
    hardware: GpuSpec
    levels: Any
    listed: Integers | None
    parts: tuple[Part, ...]
    places: tuple[list[int], ...]
    plain: Any
    radices: tuple[int, ...]
    size: int
    splits: Part | None
    staged: tuple[str, ...]
    template: Any
    unroll_depths: tuple[int, ...]
    workload: Any
    def decode(self, coordinates: Integers) -> Integers: ...
    def encode(self, points: Integers) -> Integers: ...
    def lists(self, point: Integers) -> bool: ...
    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...]: ...
    def point_of(self, schedule: Schedule) -> NDArray[np.int64]: ...
    def points_at(self, numbers: Integers) -> Integers: ...
    def sample(self, count: int, seed: int = 0) -> list[Schedule]: ...
    def sample_points(self, count: int, seed: int, *, legal: bool = True) -> Integers: ...
    def schedule(self, tiles: Mapping[str, Sequence[int]], unroll: int = 0, vector: Mapping[str, int] | None = None, *, split: Mapping[str, int] | None = None) -> Schedule: ...
    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule: ...
    def table(self, axis: str) -> Integers: ...

class GpuSpec(Struct):
    aliases: tuple[str, ...] = ()
    arch: str
    compiler: Compiler
    compute: GpuCompute
    compute_capability: float | None
    dram: Dram
    kind: Literal['gpu']
    l1: L1Cache
    l2: L2Cache
    launch: Launch
    model: str
    most_threads: None
    name: str
    registers: Registers
    schema_version: Literal[1]
    shared_memory: SharedMemory
    tensor_cores: TensorCores | None = None
    vendor: Literal['nvidia', 'amd']
    def arithmetic_rate(self, dtype: str) -> float: ...
    def needed_capability(self, dtypes: Collection[str]) -> float | None: ...
    def peak_flop_per_s(self, dtype: str, *, tensor_cores: bool = False) -> float: ...
    def reachable_share(self, *, tensor_cores: bool = False) -> float: ...
    def tensor_flop_per_s(self, dtype: str) -> float | None: ...
    def with_threads(self, threads: int) -> GpuSpec: ...

class Guarantee(Struct):
    gap: float = 0.0
    kind: Literal['exhaustive', 'certified', 'best_found']
    num_bounded: int = 0
    num_evaluated: int = 0
    def describe(self) -> str: ...

HardwareLike: UnionType

class Kernel:
    artifact: Any
    operands: tuple[str, ...]
    workload: Any
    def __call__(self, *arrays: Array) -> Array: ...
    def prepare(self, inputs: Mapping[str, Array], *, guarded: bool = False) -> Prepared: ...
    def random_call(self, seed: int = 0) -> Callable[[], None]: ...

class Limits(Struct):
    build_s: float = 20.0
    memory_bytes: int = 4294967296
    run_s: float = 10.0
    start_s: float = 60.0
    def __init__(self, /, build_s: float = 20.0, run_s: float = 10.0, memory_bytes: int = 4294967296, start_s: float = 60.0): ...

class Measurement(Struct):
    build_s: float = 0.0
    energy_j: float | None = None
    max_rel_error: float | None = None
    message: str = ''
    outcome: Outcome
    reference_times_s: tuple[float, ...] = ()
    relative: float | None
    run_s: float = 0.0
    stopped_early: bool = False
    time_s: float | None
    times_s: tuple[float, ...] = ()
    worker: str = ''
    def describe(self) -> str: ...

class Outcome(Enum):
    BUILD_ERROR: Any
    BUILD_TIMEOUT: Any
    INVALID: Any
    LOST_DEVICE: Any
    OK: Any
    RUN_ERROR: Any
    RUN_TIMEOUT: Any
    WRONG_RESULT: Any

class PipelinedSpace(GpuSpace):
    accuracy: Any
    axes: tuple[str, ...]
    choices: Any
    columns: tuple[str, ...]
    extents: dict[str, int]
    fetch_widths: tuple[int, ...]
    hardware: GpuSpec
    levels: Any
    listed: Integers | None
    pads: Any
    parts: tuple[Part, ...]
    places: tuple[list[int], ...]
    plain: Any
    radices: tuple[int, ...]
    size: int
    splits: Part | None
    stage_counts: Any
    staged: tuple[str, ...]
    template: Any
    unroll_depths: tuple[int, ...]
    workload: Any
    def decode(self, coordinates: Integers) -> Integers: ...
    def encode(self, points: Integers) -> Integers: ...
    def lists(self, point: Integers) -> bool: ...
    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...]: ...
    def point_of(self, schedule: Schedule) -> NDArray[np.int64]: ...
    def points_at(self, numbers: Integers) -> Integers: ...
    def sample(self, count: int, seed: int = 0) -> list[Schedule]: ...
    def sample_points(self, count: int, seed: int, *, legal: bool = True) -> Integers: ...
    def schedule(self, tiles: Mapping[str, Sequence[int]], unroll: int = 0, vector: Mapping[str, int] | None = None, stages: int = 2, pad: int = 0, *, split: Mapping[str, int] | None = None) -> Schedule: ...
    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule: ...
    def table(self, axis: str) -> Integers: ...

class Plan:
    accuracy: str
    alike_is_exact: bool
    best: Schedule
    compilation: Compilation | None
    correction: AppliedCorrection | None
    corrections: tuple[AppliedCorrection, ...]
    guarantee: Guarantee
    hardware: GpuSpec | CpuSpec
    joined: tuple[JoinedSpace, ...]
    measured: MeasuredSchedule | None
    num_alike: list[int] | None
    num_legal: int | None
    plain_best_s: float | None
    predictions: list[Prediction]
    rejected: dict[str, int] | None
    rules: tuple[Rule, ...]
    schedules: list[Schedule]
    space_size: int
    template: str
    templates: tuple[str, ...]
    threads: int | None
    workload: Workload
    def explain(self) -> str: ...
    def first(self, count: int) -> Plan: ...
    def to_dict(self) -> dict[str, Any]: ...
    def to_frame(self) -> pd.DataFrame: ...
    def to_json(self) -> str: ...

class Prediction(Struct):
    bound_by: str
    features: Mapping[str, float]
    gflop_per_s: float
    legal: bool = True
    occupancy: float
    occupancy_limiter: str
    parts: Mapping[str, float]
    resources: Mapping[str, float]
    rule: str = ''
    time_s: float
    traffic_over_bound: Mapping[str, float]
    waves: float

class RangePlan(Struct):
    @classmethod
    def from_json(cls, text: str | bytes) -> RangePlan: ...
    goal: Literal['worst', 'mean', 'count']
    hardware: GpuSpec | CpuSpec
    intervals: tuple[Interval, ...]
    is_complete: bool
    known_loss: float
    known_mean_loss: float
    least_loss: float
    least_programs: int
    loss: float
    mean_loss: float
    num_candidates: int
    programs: tuple[RangeProgram, ...]
    workload: RangedWorkload
    worst_extent: int
    def dispatch(self) -> dict[str, Any]: ...
    def interval_of(self, extent: int) -> Interval: ...
    def least(self, number: int) -> int: ...
    def program_of(self, extent: int) -> int: ...
    def telling_extents(self) -> list[int]: ...
    def to_dict(self) -> dict[str, Any]: ...
    def to_json(self) -> str: ...

class Schedule(Struct):
    @classmethod
    def from_json(cls, text: str | bytes) -> Schedule: ...
    hardware: GpuSpec | CpuSpec
    key: str
    options: Mapping[str, OptionValue] = {}
    template: str
    tiles: Mapping[str, tuple[int, ...]]
    unroll: int = 0
    vector: Mapping[str, int] = {}
    workload: Workload
    def __init__(self, /, workload: core.workload.nest.Workload, hardware: core.hardware.spec.GpuSpec | core.hardware.spec.CpuSpec, template: str, tiles: collections.abc.Mapping[str, tuple[int, ...]], unroll: int = 0, vector: collections.abc.Mapping[str, int] = {}, options: collections.abc.Mapping[str, int | str | bool | tuple[int | str, ...]] = {}): ...
    def apply(self) -> Any: ...
    def check(self) -> Schedule: ...
    def describe(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...
    def to_json(self) -> str: ...

class Subset(ABC):
    hardware: GpuSpec | CpuSpec
    keep: float
    num_kept: int
    num_legal: int
    rules: tuple[Rule, ...]
    workload: Workload
    def __iter__(self) -> Iterator[Schedule]: ...
    def entries(self) -> Iterator[tuple[Schedule, Prediction]]: ...
    def explain(self, schedule: Schedule) -> Verdict: ...
    def keeps(self, schedule: Schedule) -> bool: ...
    def to_dict(self) -> dict[str, Any]: ...

class TensorCoreSpace(Space):
    accuracy: Any
    axes: Any
    choices: Any
    columns: tuple[str, ...]
    extents: Any
    gemm: Any
    hardware: GpuSpec
    instruction: dict[str, int]
    levels: Any
    listed: Integers | None
    parts: tuple[Part, ...]
    places: tuple[list[int], ...]
    radices: tuple[int, ...]
    size: int
    splits: Part | None
    staged: tuple[str, ...]
    template: Any
    widths: dict[str, tuple[int, ...]]
    workload: Any
    def decode(self, coordinates: Integers) -> Integers: ...
    def encode(self, points: Integers) -> Integers: ...
    def lists(self, point: Integers) -> bool: ...
    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...] | None: ...
    def point_of(self, schedule: Schedule) -> NDArray[np.int64]: ...
    def points_at(self, numbers: Integers) -> Integers: ...
    def sample(self, count: int, seed: int = 0) -> list[Schedule]: ...
    def sample_points(self, count: int, seed: int, *, legal: bool = True) -> Integers: ...
    def schedule(self, tiles: Mapping[str, Sequence[int]], stages: int = 3, group: int = 8, vector: Mapping[str, int] | None = None, *, split: Mapping[str, int] | None = None) -> Schedule: ...
    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule: ...
    def table(self, axis: str) -> Integers: ...

class Trial(Struct):
    measurement: Measurement
    number: int = 0
    predicted_s: float | None = None
    schedule: Schedule
    source: str = 'plan'
    threads: int = 1

class TuningInterrupted(KeyboardInterrupt):
    result: Any

class TuningProgress(Struct):
    best: Trial | None = None
    done: int
    elapsed_s: float = 0.0
    estimate: CostEstimate | None = None
    failures: int = 0
    left_s: float | None = None
    stage: Literal['plan', 'start', 'measure', 'compare']
    total: int
    trial: Trial | None = None
    trials_per_s: float | None = None
    workers: tuple[WorkerState, ...] = ()

class TuningResult:
    accuracy: str
    best: Schedule
    best_trial: Trial | None
    bound: TimeBound | None
    compare: FinalComparison | None
    correction: str | None
    elapsed_s: float
    ended: Ended
    energy_j: float | None
    energy_of: tuple[str, ...]
    estimate: CostEstimate | None
    hardware: CpuSpec | GpuSpec
    measure_s: float | None
    num_resumed: int
    num_reused: int
    outcomes: dict[Outcome, int]
    patience: int | None
    plan_first: Trial | None
    records: str | None
    seed: int
    session: str | None
    share_of_bound: float | None
    shares: tuple[WorkerShare, ...]
    stop_at: float | None
    strategy: str
    templates: tuple[str, ...]
    threads: int
    trials: list[Trial]
    workers: tuple[WorkerState, ...]
    workload: Workload
    def to_dict(self) -> dict[str, object]: ...
    def to_json(self) -> str: ...

class Verdict(Struct):
    best_s: float
    bound_by: str
    cut_s: float
    factor: float
    kept: bool
    limit: float | None
    needed: float | None
    place: int | None
    rule: str
    text: str
    time_s: float

class Verification(Struct):
    max_rel_error: float | None = None
    message: str = ''
    ok: bool
    tolerance: float = 0.0

class Workload(Struct):
    attribute: dict[str, Attribute]
    attributes: tuple[tuple[str, Attribute], ...] = ()
    axes: tuple[Axis, ...]
    body: str
    compulsory_bytes: int
    dtype: str
    dtypes: frozenset[str]
    epilogue: tuple[str, ...] = ()
    epilogue_reads: tuple[Access, ...] = ()
    extents: Mapping[str, int]
    flop: int
    flop_per_point: int
    formats: str
    @classmethod
    def from_json(cls, text: str | bytes) -> Workload: ...
    is_quantised: bool
    key: str
    num_points: int
    num_reduced: int
    operands: tuple[Access, ...]
    operator: str
    output_axes: tuple[str, ...]
    reads: tuple[Access, ...]
    reduction_axes: tuple[Axis, ...]
    spatial_axes: tuple[Axis, ...]
    tensors: tuple[Access, ...]
    write: Access
    def describe(self) -> str: ...
    def tensor(self, name: str) -> Access: ...
    def to_json(self) -> str: ...

def avg_pool1d(n: int, c: int, w: int, s: int, stride: Steps = 1, padding: Padding = 0, dilation: Steps = 1, layout: str = 'NCW', dtype: str = 'float32') -> Workload: ...

def avg_pool2d(n: int, c: int, h: int, w: int, r: int, s: int, stride: Steps = 1, padding: Padding = 0, dilation: Steps = 1, layout: str = 'NCHW', dtype: str = 'float32') -> Workload: ...

def avg_pool3d(n: int, c: int, d: int, h: int, w: int, t: int, r: int, s: int, stride: Steps = 1, padding: Padding = 0, dilation: Steps = 1, layout: str = 'NCDHW', dtype: str = 'float32') -> Workload: ...

def batch_matmul(b: int, m: int, n: int, k: int, *, dtype: str = 'float32', transpose_a: bool = False, transpose_b: bool = False, epilogue: Sequence[str] = (), input_zero_point: int = 0, output_zero_point: int = 0) -> Workload: ...

def build(schedule: Schedule | RangePlan, threads: int = 1) -> Kernel | GpuKernel | RangeKernel | GpuRangeKernel: ...

def compile(model: Any, example_inputs: Any = None, *, hw: HardwareLike = 'host', threads: int | None = None, accuracy: str = 'standard', trials: int = 0, time_limit_s: float | None = None, records: str | Path | None = None, resume: bool = False, check: bool | None = None, progress: Callable[[int, int], None] | None = None, tuning_progress: Callable[[ModelProgress], None] | None = None, cluster: object = None, tls: str | Path | None = None, tracker: str | None = None, key: str | None = None, reuse: bool = True, stop_at: float | None = None, patience: int | None = None, on_estimate: Callable[[ModelEstimate], None] | None = None) -> CompiledModel: ...

def conv1d(n: int, c: int, w: int, k: int, s: int, stride: int | Sequence[int] = 1, padding: Padding = 0, dilation: int | Sequence[int] = 1, groups: int = 1, layout: str = 'NCW', dtype: str = 'float32', epilogue: Sequence[str] = (), input_zero_point: int = 0, output_zero_point: int = 0) -> Workload: ...

def conv2d(n: int, c: int, h: int, w: int, k: int, r: int, s: int, stride: int | Sequence[int] = 1, padding: Padding = 0, dilation: int | Sequence[int] = 1, groups: int = 1, layout: str = 'NCHW', dtype: str = 'float32', epilogue: Sequence[str] = (), input_zero_point: int = 0, output_zero_point: int = 0) -> Workload: ...

def conv3d(n: int, c: int, d: int, h: int, w: int, k: int, t: int, r: int, s: int, stride: int | Sequence[int] = 1, padding: Padding = 0, dilation: int | Sequence[int] = 1, groups: int = 1, layout: str = 'NCDHW', dtype: str = 'float32', epilogue: Sequence[str] = (), input_zero_point: int = 0, output_zero_point: int = 0) -> Workload: ...

def depthwise_conv2d(n: int, c: int, h: int, w: int, r: int, s: int, multiplier: int = 1, stride: int | Sequence[int] = 1, padding: Padding = 0, dilation: int | Sequence[int] = 1, layout: str = 'NCHW', dtype: str = 'float32', epilogue: Sequence[str] = (), input_zero_point: int = 0, output_zero_point: int = 0) -> Workload: ...

def einsum(subscripts: str, shapes: Sequence[Sequence[int]] | Mapping[str, int], dtype: str = 'float32') -> Workload: ...

def elementwise(shape: Sequence[int], op: str = 'relu', dtype: str = 'float32') -> Workload: ...

def hardware(name: HardwareLike) -> GpuSpec | CpuSpec: ...

def inspect(schedule: Schedule, threads: int = 1) -> dict[str, int]: ...

def layer(name: str) -> Workload: ...

def load(path: str | Path, *, mapped: bool = True) -> CompiledModel: ...

def matmul(m: int, n: int, k: int, *, dtype: str = 'float32', transpose_a: bool = False, transpose_b: bool = False, epilogue: Sequence[str] = (), input_zero_point: int = 0, output_zero_point: int = 0) -> Workload: ...

def max_pool1d(n: int, c: int, w: int, s: int, stride: Steps = 1, padding: Padding = 0, dilation: Steps = 1, layout: str = 'NCW', dtype: str = 'float32') -> Workload: ...

def max_pool2d(n: int, c: int, h: int, w: int, r: int, s: int, stride: Steps = 1, padding: Padding = 0, dilation: Steps = 1, layout: str = 'NCHW', dtype: str = 'float32') -> Workload: ...

def max_pool3d(n: int, c: int, d: int, h: int, w: int, t: int, r: int, s: int, stride: Steps = 1, padding: Padding = 0, dilation: Steps = 1, layout: str = 'NCDHW', dtype: str = 'float32') -> Workload: ...

def parse_workload(words: Sequence[str] | str, *, stride: OptionValue = None, padding: OptionValue = None, dilation: OptionValue = None, groups: OptionValue = None, layout: str | None = None, dtype: str | None = None, transpose_a: bool = False, transpose_b: bool = False, epilogue: OptionValue = None, axes: OptionValue = None, input_zero_point: OptionValue = None, output_zero_point: OptionValue = None) -> Workload: ...

def plan(workload: Workload, hw: HardwareLike, top_k: int = 10, *, template: str | None = None, accuracy: str = 'standard', threads: int | None = None, time_limit_s: float | None = None, distinct: bool = False, compile: int = 0, correction: str | Path = 'auto', records: str | Path | ServerAddress | None = None, progress: Progress | None = None, compile_progress: Callable[[int, int], None] | None = None) -> Plan: ...

def plan_range(workload: Workload | RangedWorkload | str, hw: HardwareLike, axis: str | None = None, extents: str | Iterable[int] | None = None, *, kernels: int | None = None, loss: float | None = None, weights: Any = None, template: str | None = None, threads: int | None = None, time_limit_s: float | None = None, progress: Progress | None = None) -> RangePlan: ...

def pool2d(n: int, c: int, h: int, w: int, r: int, s: int, kind: str = 'max', stride: Steps = 1, padding: Padding = 0, dilation: Steps = 1, layout: str = 'NCHW', dtype: str = 'float32') -> Workload: ...

def predict(workload: Workload, hw: HardwareLike, schedules: Iterable[Schedule], *, threads: int | None = None, correction: str | Path = 'auto') -> pd.DataFrame: ...

def prune(workload: Workload, hw: HardwareLike, keep: float = 0.01, *, template: str | None = None, accuracy: str = 'standard', threads: int | None = None, candidates: Iterable[Schedule] | None = None, time_limit_s: float | None = None, distinct: bool = False, diverse: bool = True, correction: str | Path = 'auto', progress: Progress | None = None) -> Subset: ...

def reduction(shape: Sequence[int], axes: int | Sequence[int] | None = None, kind: str = 'sum', dtype: str = 'float32') -> Workload: ...

def space(workload: Workload, hw: HardwareLike, *, template: str | None = None, threads: int | None = None) -> GpuSpace | TensorCoreSpace | CpuSpace: ...

def tune(workload: Workload, hw: HardwareLike, trials: int = 64, strategy: str = 'model', records: str | Path | None = None, threads: int | None = None, seed: int = 0, resume: bool = False, progress: Callable[[TuningProgress], None] | None = None, limits: Limits | None = None, time_limit_s: float | None = None, *, template: str | None = None, accuracy: str = 'standard', l2: str | None = None, device: int = 0, backend: str | None = None, manifest: str | Path | None = None, start: str = 'model', cluster: object = None, tls: str | Path | None = None, tracker: str | None = None, key: str | None = None, reuse: bool = True, stop_at: float | None = None, patience: int | None = None) -> TuningResult: ...

def verify(schedule: Schedule | RangePlan, *, threads: int = 1, seed: int = 0) -> Verification: ...
