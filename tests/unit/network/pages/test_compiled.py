from anatune.network.pages.compiled import model_page
from anatune.pages.page import Facts, Table
from tests.unit.report.compiled import MEASURED, gpu_summary, summary


def section(page, heading):
    return next(one for one in page.sections if one.heading == heading)


def tables(page, heading):
    return [one for one in section(page, heading).content if isinstance(one, Table)]


def test_a_model_has_all_its_sections():
    page = model_page(summary(), MEASURED, name="model.onnx")
    assert [one.heading for one in page.sections] == [
        "Summary", "Where the time goes", "In words", "Kernels", "What was tuned", "Kernels without a plan",
        "Operators left to TVM", "Memory",
    ]  # fmt: skip
    assert page.title == "model.onnx on xeon_8124m, 1 thread"
    (facts,) = (one for one in section(page, "Summary").content if isinstance(one, Facts))
    assert ("measured", "80.00 us", "a run, when it was compiled") in facts.items
    (kernels,) = tables(page, "Kernels")
    assert [len(row) for row in kernels.rows] == [len(kernels.columns)] * 2
    assert [row[-1] for row in kernels.rows] == ["measurements", "the plan"]


def test_what_was_tuned_and_what_not():
    told = section(model_page(summary()), "What was tuned")
    assert told.words[0].startswith("1 of 2 kernels")
    assert told.words[2].startswith("Not measured, because their operands are not constant: matmul 64x48x32")
    (rows,) = (one.rows for one in told.content)
    assert rows[0][2:6] == (12, 16.0, 14.0, 12.5)
    assert section(model_page(gpu_summary()), "What was tuned").words == [
        "Nothing: each kernel is the first choice of the analytical model."
    ]


def test_kernels_of_gpus_have_registers():
    page = model_page(gpu_summary())
    (kernels,) = tables(page, "Kernels")
    assert kernels.columns[-3].name == "registers"
    assert kernels.rows[0][-3:] == (128, 0, 16384)
    assert "Kernels without a plan" not in [one.heading for one in page.sections]
