"""The examples in docstrings and in README.md run, and the example program does."""

import doctest
import pathlib
import subprocess
import sys

import onramp
import onramp._link
import onramp.aqm
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1]
FLAGS = doctest.ELLIPSIS


def finds(module, *parts):
    """Returns the examples of a module, and of classes that were written in Rust."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = finder.find(module)
    for part in parts:
        tests += finder.find(part, part.__name__, module=False, globs={})
    return tests


def failures(tests):
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    said = []
    for test in tests:
        runner.run(test, out=said.append)
    counts = runner.summarize(verbose=False)
    assert counts.attempted > 0
    return "".join(said)


@pytest.mark.parametrize(
    ("tests", "least"),
    [(finds(onramp, onramp.Tree), 6), (finds(onramp._link), 1), (finds(onramp.aqm), 2)],
)
def test_docstrings(tests, least):
    assert len([test for test in tests if test.examples]) >= least
    assert failures(tests) == ""


def test_the_readme():
    parser = doctest.DocTestParser()
    text = (FOLDER / "README.md").read_text()
    test = parser.get_doctest(text.replace("```", "\n"), {}, "README.md", "README.md", 0)
    assert len(test.examples) > 5
    assert failures([test]) == ""


def test_all_that_is_public_has_a_docstring():
    for part in (onramp, onramp.aqm, *map(onramp.__dict__.get, onramp.__all__)):
        if isinstance(part, (str, tuple)):
            continue
        assert part.__doc__, part
        if isinstance(part, type):
            for name, member in vars(part).items():
                if not name.startswith("_"):
                    assert member.__doc__, f"{part}.{name}"


def test_the_example_program():
    program = FOLDER / "examples/sojourn.py"
    command = [sys.executable, str(program), "--text"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "fq_codel" in done.stdout and "#" in done.stdout, done.stdout
