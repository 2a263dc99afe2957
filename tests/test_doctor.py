"""`millpond doctor` finds what a query needs and says how to fix what is missing."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millpond.cli import doctor
from millpond.cli.app import app


def fake_java(home: Path, version_line: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


def check_named(name: str) -> doctor.Check:
    return next(check for check in doctor.run_checks() if check.name == name)


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ('openjdk version "17.0.2" 2022-01-18', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('openjdk version "11.0.20" 2023-07-18', "failed"),
        ('java version "1.8.0_371"', "failed"),
    ],
)
def test_java_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, state: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", line)))
    found = check_named("Java")
    assert found.state == state
    assert line in found.found
    assert bool(found.fix) == (state == "failed")


def test_missing_java_is_a_failed_check_and_a_failing_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "openjdk-17" in result.output


def test_a_worker_python_without_millpond_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "python-without-millpond"
    other.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'millpond'\" >&2\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    found = check_named("worker Python")
    assert found.state == "failed"
    assert "No module named 'millpond'" in found.found
    assert f"PYSPARK_PYTHON={sys.executable}" in found.fix
