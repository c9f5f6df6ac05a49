from __future__ import annotations

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.job_options import GivenOptions, giving, option


def ask(words, *arguments, **keywords):
    given = GivenOptions.parse(words, ["--learning-rate", "--epochs"])
    with giving(given):
        value = option(*arguments, **keywords)
    given.require_all_asked()
    return value


@pytest.mark.parametrize(
    ("words", "default", "value"),
    [
        ([], 3, 3),
        (["--my-size", "4"], 3, 4),
        (["--my_size=4"], 3, 4),
        (["--my-size", "0.5"], 1.0, 0.5),
        (["--my-size", "-1"], 1, -1),
        (["--my-size"], False, True),
        (["--my-size", "no"], True, False),
        (["--my-size", "a", "b"], "", "a b"),
        (["--my-size="], "x", "true"),
    ],
)
def test_an_option_has_the_type_of_its_default(words, default, value):
    found = ask(words, "my-size", default)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "huge"], "--size must be one of 1, 2, got 3"),
        (["--size", "x"], "--size must be of type int, got 'x'"),
        (["--siz", "1"], "no such option '--siz'. Did you mean '--size'?"),
        (["--epoch", "1"], "no such option '--epoch'. Did you mean '--epochs'?"),
        (["more", "--size", "1"], "unexpected argument 'more'"),
        (["-s", "1"], "unexpected argument '-s'"),
        (["--", "1"], "unexpected argument '--'"),
    ],
)
def test_what_cannot_be_is_refused(words, message):
    words = ["3" if word == "huge" else word for word in words]
    with pytest.raises(ConfigError) as caught:
        ask(words, "size", 1, choices=(1, 2))
    assert message in str(caught.value)


def test_outside_of_a_command_the_default_holds():
    with giving(GivenOptions({"size": "2"})):
        assert option("size", 1) == 2
    assert option("size", 1) == 1


def test_a_name_of_the_command_itself_is_refused():
    with giving(GivenOptions({}, ["--epochs", "--batch-size"])), pytest.raises(ConfigError, match="already"):
        option("batch_size", 4)


def test_choice_that_is_none_is_told_with_the_nearest():
    with giving(GivenOptions.parse(["--size", "smal"])), pytest.raises(ConfigError) as caught:
        option("size", "tiny", choices=("tiny", "small"))
    assert str(caught.value) == "--size must be one of tiny, small, got 'smal'. Did you mean 'small'?"


def test_option_of_another_command_is_told_and_those_of_train_pass():
    options = GivenOptions.parse(["--epochs", "2", "--repeat", "3"], ["--epochs"])
    with pytest.raises(ConfigError) as caught:
        options.require_all_asked("bench", ["--repeats"])
    assert str(caught.value) == (
        "hvdtrain bench: no such option '--repeat'. Did you mean '--repeats'? See 'hvdtrain bench --help'."
    )
