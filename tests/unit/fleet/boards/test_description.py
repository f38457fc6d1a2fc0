import msgspec
import pytest

import anatune
from anatune.errors import DeviceError
from anatune.fleet.boards.description import describe_board, explain_difference, machine_of, spec_name
from tests.wording import check_texts, refuses

X86 = """processor : 0
vendor_id : GenuineIntel
cpu family : 6
model : 207
model name : Intel\x1b[31m(R) Xeon
flags : fpu sse sse2 avx avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni

processor : 1
vendor_id : GenuineIntel
cpu family : 6
model : 207
flags : fpu sse sse2 avx avx2 fma avx512f
"""
ARM = """processor : 0
Features : fp asimd
CPU implementer : 0x41
CPU part : 0xd0c

processor : 3
Features : fp asimd
CPU implementer : 0x41
CPU part : 0xd0c
"""


class Files:
    """What `described` needs of a board: files, and what its processor says of itself."""

    name = "key@10.0.0.7:9090"

    def __init__(self, machine, files, midr=0, capabilities=0):
        self.machine, self._files, self._errands = machine, files, {"processor": midr, "capability": capabilities}

    def file(self, path):
        return self._files.get(path)

    def errand(self, name, *numbers):
        return self._errands[name]


def test_a_board_is_described_by_its_files():
    cache = {"size": "64K", "type": "Data", "level": "1", "coherency_line_size": "64", "ways_of_associativity": "4"}
    files = {
        "/proc/cpuinfo": ARM,
        "/proc/self/status": "Name:\tboard\nCpus_allowed_list:\t3\n",
        "/proc/sys/kernel/osrelease": "6.6.1-v8\n",
        "/proc/meminfo": "MemTotal: 4000 kB\nMemAvailable:    1000 kB\n",
        "/sys/devices/system/cpu/cpu3/cpufreq/cpuinfo_max_freq": "1500000\n",
        **{f"/sys/devices/system/cpu/cpu3/cache/index0/{name}": text for name, text in cache.items()},
    }
    found = describe_board(Files("aarch64", files), "Rasp 4/B", 3)
    assert (found.name, found.boards, found.free_bytes) == ("key@10.0.0.7:9090", 3, 1024000)
    assert (found.hardware.name, found.hardware.arch) == ("rasp_4_b", "neoverse-n1")
    assert (found.hardware.compute.num_cores, found.hardware.compute.clock_hz) == (1, 1.5e9)
    assert (found.hardware.l1.size_bytes, found.hardware.l1.ways) == (65536, 4)
    there = found.environment
    assert (there.cpu, there.cores, there.platform) == ("Neoverse N1", 1, "Linux-6.6.1-v8-aarch64")
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_an_emulator_passes_on_what_its_own_machine_says():
    found = describe_board(Files("aarch64", {"/proc/cpuinfo": X86}, midr=0x410FD083, capabilities=0b11), "k")
    assert (found.hardware.arch, found.hardware.compute.isa) == ("cortex-a72", "neon")
    assert found.hardware.compute.num_cores == 2


def test_what_a_board_says_is_no_command_to_a_terminal():
    found = describe_board(Files("x86_64", {"/proc/cpuinfo": X86}), "k")
    assert found.hardware.model == "Intel\\x1b[31m(R) Xeon"
    assert found.hardware.hidden_features


@pytest.mark.parametrize("text", [None, "", "hello", "processor : 0\n", "processor : 99999999999999999999\n"])
def test_a_board_that_tells_nothing_usable(text):
    with refuses(DeviceError) as caught:
        describe_board(Files("x86_64", {"/proc/cpuinfo": text}), "k")
    assert "anatune-" not in str(caught.value)  # no folder of ours


def test_lists_of_processors_have_an_end():
    files = {"/proc/cpuinfo": ARM, "/proc/self/status": "Cpus_allowed_list:\t0-99999999999999\n"}
    assert describe_board(Files("aarch64", files), "k").hardware.compute.num_cores == 2


def test_which_boards_are_the_same_device():
    one = anatune.hardware("arm_cortex_a72")
    clock = msgspec.structs.replace(
        one.compute, clock_hz=one.compute.clock_hz / 2, fp32_peak_flop_per_s=one.compute.fp32_peak_flop_per_s / 2
    )
    assert explain_difference(one, one) == ""
    assert explain_difference(one, msgspec.structs.replace(one, compute=clock)) == ""  # what a system says just now
    assert explain_difference(one, anatune.hardware("aws_graviton3")).startswith("it is ")
    fewer = one.with_threads(one.compute.num_cores - 1)
    assert f"it has {fewer.compute.num_cores} cores, expected {one.compute.num_cores}" in explain_difference(one, fewer)
    whole = anatune.hardware("intel_xeon_8480")
    hiding = msgspec.structs.replace(whole, hidden_features=("avx512bf16",))
    check_texts([explain_difference(whole, hiding)])
    assert explain_difference(hiding, whole) == ""  # what is not used may be there


def test_names_and_processors():
    names = {"rasp4b": "rasp4b", "Jetson-Nano.2": "jetson_nano_2", "_x_": "x", "--": "board", "host": "board_host"}
    assert {key: spec_name(key) for key in names} == names
    assert machine_of(anatune.hardware("aws_graviton3")) == "aarch64"
    assert machine_of(anatune.hardware("amd_epyc_7763")) == "x86_64"
