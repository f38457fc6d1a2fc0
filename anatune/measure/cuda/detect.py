"""Detection of this machine's GPUs through the driver packages that are installed and work."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator

import msgspec

from anatune.core.hardware.files import load_spec_file
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import AnatuneError, DeviceError, RunError, SpecError
from anatune.measure.cuda.drivers.backends import NO_GPU, WITHOUT_GPU, make_backend
from anatune.measure.cuda.drivers.driver_calls import DriverBackend, LostDeviceError
from anatune.measure.energy import EnergyCounter, gpu_counter
from anatune.resources import data_folder


def present_gpus() -> tuple[list[GpuSpec], str]:
    """Return the specs of this machine's GPUs, NVIDIA's first, and how they were detected, or why there are none."""
    (nvidia, how), (others, of_others) = gpu_detection(), amd_detection()
    if nvidia or others:
        return [*nvidia, *others], "; ".join(said for specs, said in ((nvidia, how), (others, of_others)) if specs)
    return [], f"{how}; {of_others}"


def amd_detection(driver: DriverBackend | None = None) -> tuple[list[GpuSpec], str]:
    """Return the packaged specs that match the architecture and compute units of this machine's AMD GPUs."""
    specs, strange = [], ""
    try:
        backend = driver or make_backend(arch="gfx")
        for index in range(backend.count()):
            arch, units = backend.arch(index), backend.attribute(index, "MULTIPROCESSOR_COUNT")
            matching = [spec for spec in _packaged_gpus("amd") if (spec.arch, spec.compute.num_sms) == (arch, units)]
            product = backend.device_name(index)
            if not matching:  # stop here, because later GPUs would get its number
                strange = (
                    f"{product} ({arch}, {units} compute units) has no packaged spec; name a similar one with --hw"
                )
                break
            specs.append(max(matching, key=functools.partial(_likeness, product)))
    except (DeviceError, RunError) as error:
        return [], _reason(error)
    number = f"{len(specs)} found through {backend.name}" if specs else ""
    return specs, "; ".join(filter(None, (number, strange))) or "HIP reports no device"


def gpu_detection(driver: DriverBackend | str | None = None) -> tuple[list[GpuSpec], str]:
    """Return the specs of this machine's NVIDIA GPUs and how they were detected, or why there are none.

    Parameters
    ----------
    driver : Backend or str, optional
        Driver calls, or the name of a backend; by default the backend that works.
    """
    try:
        backend = make_backend(driver) if driver is None or isinstance(driver, str) else driver
        count = backend.count()
        specs = [_gpu_spec(backend, index) for index in range(count)]
    except (DeviceError, RunError, SpecError) as error:
        return [], _reason(error)
    return specs, f"{count} found through {backend.name}" if count else "the NVIDIA driver reports no device"


def _reason(error: AnatuneError) -> str:
    return str(error).removeprefix(NO_GPU).removesuffix(f"; {WITHOUT_GPU}")


def _gpu_spec(backend: DriverBackend, index: int) -> GpuSpec:
    """Return the packaged spec that is nearest to a device, with the attributes of the device."""

    def ask(name: str) -> int:
        return backend.attribute(index, name)

    product = backend.device_name(index)
    arch, num_sms = backend.arch(index), ask("MULTIPROCESSOR_COUNT")
    near = _nearest_gpu(product, int(arch[3:]), num_sms)
    clock_hz = _ask_if_known(backend, index, "CLOCK_RATE") * 1e3 or near.compute.clock_hz
    same_arch = near.arch == arch
    same = same_arch and near.compute.num_sms == num_sms
    warp_size = ask("WARP_SIZE")
    said = f"read from the device; the rest as {near.model}"
    compute = msgspec.structs.replace(
        near.compute,
        num_sms=num_sms,
        clock_hz=clock_hz,
        fp32_peak_flop_per_s=2.0 * num_sms * near.compute.fp32_lanes_per_sm * clock_hz,
        warp_size=warp_size,
        max_threads_per_block=ask("MAX_THREADS_PER_BLOCK"),
        max_warps_per_sm=ask("MAX_THREADS_PER_MULTIPROCESSOR") // warp_size,
        max_blocks_per_sm=ask("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        source=f"counts, clock and limits {said}",
        unverified=tuple(key for key in near.compute.unverified if key != "clock_hz")
        if same_arch
        else ("fp32_lanes_per_sm", "fma_latency_cycles", "fp16_rate", "int8_rate", "reachable_fraction"),
    )
    registers = msgspec.structs.replace(
        near.registers,
        per_sm=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        per_block=ask("MAX_REGISTERS_PER_BLOCK"),
        source=f"sizes {said}",
    )
    shared_memory = msgspec.structs.replace(
        near.shared_memory,
        per_sm_bytes=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        per_block_bytes=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        reserved_per_block_bytes=ask("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        source=f"sizes {said}",
    )
    scale = num_sms * clock_hz / (near.compute.num_sms * near.compute.clock_hz)
    l2 = msgspec.structs.replace(
        near.l2,
        size_bytes=ask("L2_CACHE_SIZE") or near.l2.size_bytes,
        bandwidth_bytes_per_s=near.l2.bandwidth_bytes_per_s * (1.0 if same else scale),
        source=f"size {said}" + ("" if same else ", bandwidth scaled by SMs x clock"),
        unverified=near.l2.unverified if same else ("bandwidth_bytes_per_s", "latency_cycles"),
    )
    # Double data rate: two transfers in each memory clock.
    memory_hz = _ask_if_known(backend, index, "MEMORY_CLOCK_RATE") * 1e3
    bandwidth = 2.0 * memory_hz * _ask_if_known(backend, index, "GLOBAL_MEMORY_BUS_WIDTH") / 8
    dram = near.dram
    if bandwidth >= 1e9:
        dram = msgspec.structs.replace(
            dram,
            bandwidth_bytes_per_s=bandwidth,
            source=f"bandwidth = 2 x memory clock x bus width, {said}",
            unverified=tuple(key for key in dram.unverified if key != "bandwidth_bytes_per_s"),
        )
    return msgspec.structs.replace(
        near,
        name=near.name if same else re.sub(r"[^a-z0-9]+", "_", product.lower()).strip("_"),
        model=product,
        arch=arch,
        aliases=near.aliases if same else (),
        compute=compute,
        registers=registers,
        shared_memory=shared_memory,
        l2=l2,
        dram=dram,
    )


def _ask_if_known(backend: DriverBackend, index: int, name: str) -> int:
    """Return an attribute; 0 if the package or the driver does not know it, as newer ones do not know clocks."""
    try:
        return backend.attribute(index, name)
    except LostDeviceError:
        raise
    except (DeviceError, RunError):
        return 0


def gpu_environment(device: int = 0, backend: str | None = None) -> dict[str, str | int]:
    """Return the facts that records hold about a GPU besides its spec: product, CUDA version of the driver, package."""
    chosen = make_backend(backend)
    return {"gpu": chosen.device_name(device), "cuda_driver": chosen.version(), "backend": chosen.name}


def device_counter(device: int = 0, backend: str | None = None) -> EnergyCounter | None:
    """Return the energy counter of a GPU; None if there is none. CUDA and NVML may number devices differently."""
    try:
        chosen = make_backend(backend)
        domain, bus, slot = (chosen.attribute(device, f"PCI_{name}") for name in ("DOMAIN_ID", "BUS_ID", "DEVICE_ID"))
    except AnatuneError:  # no GPU, or a package that does not know the attributes
        return None
    return gpu_counter(f"{domain:08x}:{bus:02x}:{slot:02x}.0")


def _nearest_gpu(product: str, capability: int, num_sms: int) -> GpuSpec:
    """Return the packaged NVIDIA spec of the nearest compute capability, then of the most similar device."""

    def distance(spec: GpuSpec) -> tuple[int, bool, float]:
        return (abs(int(spec.arch[3:]) - capability), spec.compute.num_sms != num_sms, -_likeness(product, spec))

    return min(_packaged_gpus("nvidia"), key=distance)


def _likeness(product: str, spec: GpuSpec) -> float:
    return difflib.SequenceMatcher(None, product.lower(), spec.model.lower()).ratio()


def _packaged_gpus(vendor: str) -> Iterator[GpuSpec]:
    for path in sorted(data_folder("hwspecs").glob(f"{vendor}_*.toml")):
        spec = load_spec_file(path)
        if spec.kind == "gpu":
            yield spec
