"""Bad input ends with one clear line on stderr, an exit status, no traceback and nothing on stdout."""

import pytest

PLAN = "plan --hw rtx3090 "


def check(done, status, *parts):
    assert done.returncode == status, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr) < 1000
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (PLAN + "matmul 0x4096x1024", ["0", ">= 1"]),
        (PLAN + "matmul 512xabc", ["'abc'", "matmul 512x4096x1024"]),
        (PLAN + "matmul 512x512", ["MxNxK"]),
        (PLAN + "matmul 99999999999999999999x2x2", ["digits"]),
        (PLAN + "matmul", ["MxNxK"]),
        (PLAN + "matmul 8x8x8 8x8x8", ["got 2 words"]),
        (PLAN + "matmull 8x8x8", ["did you mean matmul?"]),
        (PLAN + "matmul 8x8x8 --dtype float13", ["float13", "float32"]),
        (PLAN + "matmul 8x8x8 --stride 2", ["--stride does not apply"]),
        (PLAN + "matmul 8x8x8 --epilogue sqrt", ["sqrt"]),
        (PLAN + "conv2d 1x8x8x8 8x8x3x3 --stride -1", ["-1", "stride"]),
        (PLAN + "conv2d 1x8x8x8 8x8x3x3 --stride 0", ["0", "stride"]),
        (PLAN + "conv2d 1x8x8x8 8x8x3x3 --stride x", ["stride"]),
        (PLAN + "conv2d 1x8x8x8 8x8x3x3 --padding -3", ["padding"]),
        (PLAN + "conv2d 1x8x8x8 8x8x3x3 --layout NCWH", ["NCWH", "NHWC"]),
        (PLAN + "conv2d 1x8x8x8 8x8x3x3 --groups 3", ["group"]),
        (PLAN + "conv2d 1x8x8x8 8x4x3x3", ["channels"]),
        (PLAN + "conv2d 1x8x2x2 8x8x3x3", ["3"]),
        (PLAN + "einsum ij,jk->iz 8x8 8x8", ["z"]),
        (PLAN + "reduction 8x8 --axes 7", ["7"]),
        (PLAN + "resnet18:C99", ["C99", "C12"]),
        (PLAN + "vgg:C1", ["vgg", "resnet18"]),
        ("plan --hw rtx9999 matmul 8x8x8", ["rtx9999", "anatune hw list", "copy a file of"]),
        ("plan --hw /nowhere/spec.toml matmul 8x8x8", ["/nowhere/spec.toml", "no such file"]),
        ("hw show rtx9999", ["rtx9999"]),
        ("hw show ''", ["unknown hardware"]),
    ],
)
def test_bad_words(anatune, words, parts):
    check(anatune(*[word.replace("''", "") for word in words.split()]), 1, *parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", ["command"]),
        ("plann", ["plann"]),
        ("hw", ["command"]),
        ("hw show", ["NAME"]),
        ("hw check", ["FILE"]),
        ("plan", ["--hw"]),
        ("plan matmul 8x8x8", ["--hw"]),
        ("plan --hw rtx3090", ["workload is missing", "matmul 512x4096x1024"]),
        ("plan --hw", ["--hw"]),
        (PLAN + "matmul 8x8x8 --nonsense", ["--nonsense"]),
        (PLAN + "matmul -1x512x512", ["-1"]),
        (PLAN + "matmul 8x8x8 --top-k 0", ["--top-k", "expected a number >= 1", "got '0'"]),
        (PLAN + "matmul 8x8x8 --top-k abc", ["--top-k"]),
        (PLAN + "matmul 8x8x8 --top-k", ["--top-k"]),
        (PLAN + "matmul 8x8x8 --time-limit 0", ["--time-limit", "0.000001", "'0'"]),
        (PLAN + "matmul 8x8x8 --time-limit nan", ["--time-limit"]),
        (PLAN + "matmul 8x8x8 --time-limit soon", ["--time-limit"]),
    ],
)
def test_wrong_usage(anatune, words, parts):
    check(anatune(*words.split()), 2, "--help", *parts)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda text: text.replace("936e9", "936"), ["dram.bandwidth_bytes_per_s", "GB/s"]),
        (lambda text: text.replace("clock_hz = 1.695e9", "clock_mhz = 1695"), ["clock_mhz", "clock_hz"]),
        (lambda text: text.replace("num_sms = 82", "num_sms = 41"), ["peak"]),
        (lambda text: text.replace("num_sms = 82", 'num_sms = "82"'), ["num_sms", "whole number"]),
        (lambda text: text[: text.index("[l2]")] + "[[[", ["TOML"]),
        (lambda text: "", ["kind"]),
        (lambda text: "\0\1\2", ["TOML"]),
    ],
)
def test_bad_spec_files(anatune, tmp_path, change, parts):
    path = tmp_path / "nvidia_broken.toml"
    path.write_text(change(anatune("hw", "show", "rtx3090").stdout))
    check(anatune("plan", "--hw", path, "matmul", "8x8x8"), 1, str(path), *parts)


def test_spec_paths_that_are_no_files(anatune, tmp_path):
    check(anatune("plan", "--hw", f"{tmp_path}/", "matmul", "8x8x8"), 1, str(tmp_path), "is a folder")
    check(anatune("hw", "show", tmp_path), 1, str(tmp_path), "is a folder")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    check(anatune("plan", "--hw", binary, "matmul", "8x8x8"), 1, "UTF-8")


def test_damaged_user_spec_is_named(anatune, tmp_path):
    folder = tmp_path / "anatune" / "hwspecs"
    folder.mkdir(parents=True)
    (folder / "host.toml").write_text("kind = [")
    check(anatune("plan", "--hw", "host", "matmul", "8x8x8", XDG_CONFIG_HOME=str(tmp_path)), 1, "host.toml")


def test_detect_where_nothing_can_be_written(anatune, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    check(anatune("hw", "detect", XDG_CONFIG_HOME=str(blocked)), 1, "cannot write")
