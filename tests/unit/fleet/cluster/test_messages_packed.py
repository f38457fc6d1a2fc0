import msgspec
import pytest

from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.emit.buffer import Buffer
from anatune.errors import RunError
from anatune.fleet.cluster.messages import DamagedError, pack, unpack
from tests.wording import refuses

CONTENT = b"\x7fELF" + bytes(range(256))


@pytest.fixture
def packed(tmp_path):
    library = tmp_path / "kernel.so"
    library.write_bytes(CONTENT)
    artifact = CpuArtifact("key", str(library), (Buffer("A", "float32", (2, 3)),), facts={"flop": 6}, error=1e-6)
    return pack(artifact, "cpu"), artifact


def test_an_artifact_arrives_with_its_file_under_a_new_path(packed, tmp_path):
    sent, artifact = packed
    assert str(tmp_path).encode() not in sent.artifact
    there = tmp_path / "there"
    there.mkdir()
    found = unpack(sent, there, "key")
    assert found == msgspec.structs.replace(artifact, library=found.library)
    assert found.library.startswith(str(there))
    assert found.library.endswith(".so")
    with open(found.library, "rb") as stream:
        assert stream.read() == CONTENT


@pytest.mark.parametrize(
    "change",
    [
        {"content": CONTENT[:-1]},
        {"content": CONTENT[:-1] + b"x"},
        {"sha256": "0" * 64},
        {"artifact": b"{}"},
        {"artifact": b"nonsense"},
    ],
)
def test_what_was_changed_on_the_way_is_refused(packed, tmp_path, change):
    sent, _ = packed
    with refuses(DamagedError):
        unpack(msgspec.structs.replace(sent, **change), tmp_path, "key")


def test_a_kernel_of_another_schedule_is_refused(packed, tmp_path):
    with refuses(DamagedError):
        unpack(packed[0], tmp_path, "other")


def test_files_that_cannot_be_read_or_written_are_one_line(packed, tmp_path):
    sent, artifact = packed
    with refuses(RunError):
        pack(msgspec.structs.replace(artifact, library=str(tmp_path / "none.so")), "cpu")
    with refuses(RunError):
        unpack(sent, tmp_path / "none", "key")
