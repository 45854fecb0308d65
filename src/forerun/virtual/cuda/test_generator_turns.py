"""How often generators yield that programs write around their loaders."""

import pytest

from forerun.virtual.cuda.generator_turns import turns_of

GENERATORS = """
class Logger:
    def log_every(self, iterable, every, header=""):
        "As the training scripts of torchvision and of many papers have it."
        count = 0
        for each in iterable:
            yield each
            if count % every == 0 or count == len(iterable) - 1:
                print(header)
            count += 1
        print("done")

def passed_on(values):
    with open("/dev/null") as file:
        print(file)
        yield from values

def numbered(values):
    for number, value in enumerate(values):
        try:
            yield number, value
        finally:
            pass

def endless(values):
    while True:
        yield from values

def chosen(values):
    for value in values:
        if value:
            yield value

def twice(values):
    for value in values:
        yield value
        yield value

def grouped(values):
    for value in values:
        for part in value:
            yield part
"""


@pytest.mark.parametrize(
    ("generator", "expected"),
    [
        ("Logger().log_every([1, 2, 3], 2)", 3),
        ("passed_on([1, 2])", 2),
        ("numbered([1, 2, 3, 4])", 4),
        ("endless([1, 2])", None),
        ("chosen([1, 0])", None),
        ("twice([1, 2])", None),
        ("grouped([[1], [2]])", None),
        ("numbered(iter([1, 2]))", None),
        ("(each for each in [1, 2])", None),
    ],
)
def test_turns_of_generators(generator, expected, tmp_path):
    path, names = tmp_path / "own.py", {}
    path.write_text(GENERATORS)
    exec(compile(GENERATORS, str(path), "exec"), names)
    generator = eval(generator, names)
    count, _ = turns_of(generator)
    assert count == expected
    if expected is not None:
        assert sum(1 for _ in generator) == expected  # it has not begun


def test_one_that_is_over_has_none():
    generator = (each for each in [1])
    list(generator)
    assert turns_of(generator) == (None, False)
