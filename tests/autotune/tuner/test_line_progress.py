"""Progress as lines: on a terminal the counts rewrite one line, elsewhere each line stays."""

import io

import pytest

from autotune.tuner import LineProgress, line_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(stream, monkeypatch):
    monkeypatch.setattr(line_progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(line_progress, "REWRITE_SECONDS", 0.0)
    with LineProgress("title", stream) as progress:
        progress.total(2)
        progress.stage("searching")
        progress.compiling(3)
        progress.compiled(3, 1)
        progress.measured("a", 5, 1.0)
        progress.done("a")
        progress.end("done")
    return stream.getvalue()


def test_a_log_gets_plain_lines(monkeypatch):
    lines = written(io.StringIO(), monkeypatch).splitlines()
    assert lines[0] == "title" and lines[-1].endswith("s  done")
    assert lines[-2].endswith("searching: 3 of 3 kernels compiled, 5 candidates tried, 1 of 2 problems tuned")
    assert not any("\r" in line for line in lines)


def test_a_terminal_gets_one_line_of_counts(monkeypatch):
    lines = written(Terminal(), monkeypatch).split("\n")
    assert [line.split("\r")[-1].split("  ")[-1] for line in lines] == ["title", "searching", "done", ""]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_counts_are_written_seldom(stream):
    kept = stream()
    with LineProgress("title", kept) as progress:
        for _ in range(1000):
            progress.compiling(1)
    assert kept.getvalue() == "title\n"
