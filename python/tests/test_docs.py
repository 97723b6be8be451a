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


def failures(tests):
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    said = []
    for test in tests:
        runner.run(test, out=said.append)
    counts = runner.summarize(verbose=False)
    assert counts.attempted > 0
    return "".join(said)


@pytest.mark.parametrize(
    ("module", "least"),
    # The package itself has the classes that were written in Rust.
    [(onramp, 7), (onramp._link, 1), (onramp.aqm, 2)],
)
def test_docstrings(module, least):
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert len(tests) >= least
    assert failures(tests) == ""


def test_the_readme(monkeypatch):
    monkeypatch.chdir(FOLDER)
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
