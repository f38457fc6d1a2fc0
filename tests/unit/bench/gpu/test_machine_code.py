"""Counting the instructions of a disassembled loop."""

import pytest

from bench.gpu.machine_code import class_of, loop_mix


def listing(*lines):
    """Return what nvdisasm prints: labels as they are, everything else an instruction."""
    text = []
    for at, line in enumerate(lines):
        text.append(line if line.startswith(".L") else f"        /*{16 * at:04x}*/              {line} ;")
    return "\n".join(text)


KERNEL = listing(
    "MOV R1, c[0x0][0x28]",
    ".L_x_1:",
    "@!P0 LDG.E.128 R4, [R2.64]",
    "STS.128 [R8], R4",
    ".L_x_0:",
    "LDS R5, [R9]",
    "FFMA R0, R5, R6, R0",
    "FFMA R1, R5, R7, R1",
    "IADD3 R9, R9, 0x4, RZ",
    "@P1 BRA `(.L_x_0)",
    "BAR.SYNC 0x0",
    "@P0 BRA `(.L_x_1)",
    "STG.E [R2.64], R0",
    "EXIT",
    ".L_x_2:",
    "BRA `(.L_x_2)",
)


def test_inner_loops_count_as_often_as_the_multiply_adds_take():
    mix = loop_mix(KERNEL, 8.0)
    assert mix == {"global": 1, "sts": 1, "lds": 4, "fma": 8, "int": 4, "control": 4 + 2}


def test_a_single_step_is_the_whole_kernel():
    assert loop_mix(KERNEL, 2.0, whole=True)["move"] == 1


@pytest.mark.parametrize(
    ("operation", "operands", "name"),
    [
        ("FFMA", " R0, R1, R2, R0", "fma"),
        ("HFMA2.MMA", " R6, -RZ, RZ, 0, 0", "move"),
        ("IMAD.MOV.U32", " R1, RZ, RZ, R2", "move"),
        ("IMAD.WIDE", " R2, R3, R4, c[0x0][0x160]", "int"),
        ("UIADD3", " UR4, UR4, 0x1, URZ", "uniform"),
        ("LDGSTS.E.BYPASS.128", " [R1], [R2.64]", "global"),
        ("FMNMX", " R1, R2, R3, !PT", "other"),
    ],
)
def test_operations_have_classes(operation, operands, name):
    assert class_of(operation, operands) == name
