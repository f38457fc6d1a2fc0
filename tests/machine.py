"""The present machine, for tests that need to know more of it than a saved spec may say."""

import msgspec

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.measure.cpu.detect import detect_cpu


def host() -> CpuSpec:
    """Return the spec that "host" names, with what the machine hides now: a file may be older than that key."""
    spec = anatune.hardware("host")
    assert isinstance(spec, CpuSpec)
    return msgspec.structs.replace(spec, hidden_features=detect_cpu().hidden_features)
