"""Former names of keywords, and functions that will go."""

import inspect

import pytest

from anatune.deprecation import deprecated, renamed


@renamed("1.0", budget_s="time_limit_s", hardware="hw")
def search(hw, time_limit_s=1.0, *, keep=2):
    """Search."""
    return hw, time_limit_s, keep


def test_former_names_work_with_a_warning():
    with pytest.warns(
        DeprecationWarning, match=r"search: budget_s is now called time_limit_s; .* goes in anatune 1\.0"
    ) as seen:
        assert search("a", budget_s=3.0) == ("a", 3.0, 2)
    assert seen[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="hardware is now called hw"):
        assert search(hardware="b", keep=5) == ("b", 1.0, 5)


def test_present_names_say_nothing(recwarn):
    assert search(hw="a", time_limit_s=2.0) == ("a", 2.0, 2)
    assert not recwarn
    assert list(inspect.signature(search).parameters) == ["hw", "time_limit_s", "keep"]
    assert search.__doc__ == "Search."


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_both_names_are_an_error():
    with pytest.raises(TypeError, match=r"search\(\) got hw and hardware, which is the same"):
        search(hw="a", hardware="b")
    with pytest.raises(TypeError, match="multiple values"):
        search("a", hardware="b")
    with pytest.raises(TypeError, match="unexpected keyword"):
        search("a", limit_s=1.0)


def test_a_function_that_will_go_still_works():
    @deprecated("2.0", "anatune.plan")
    def find(hw):
        """Find."""
        return hw

    with pytest.warns(DeprecationWarning, match=r"find is deprecated, use anatune\.plan; .* in anatune 2\.0") as seen:
        assert find("a") == "a"
    assert seen[0].filename == __file__
    assert (find.__doc__, list(inspect.signature(find).parameters)) == ("Find.", ["hw"])
