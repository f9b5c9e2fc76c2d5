"""A copy of the checkout in which mutants are applied one by one, each with the tests that must fail."""

from __future__ import annotations

import ast
import contextlib
import enum
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.support.paths import ROOT

__all__ = ["Copy", "Outcome", "Result"]

LIMIT_SECONDS = 600.0
"""Seconds after which the tests of a mutant are stopped."""

# What git does not track and tests need: a copy that has it compiles only what a mutant changes.
_BUILT = ("spark_statestore/jars/*.jar", "jvm-shim/target/*.jar", "jvm-shim/target/*.jsa")

# Writes the digests of the changed sources, so that no test builds the jars again.
_REPLACE_CLASSES = """
import pathlib, sys, tempfile, zipfile
sys.path.insert(0, "jvm-shim")
import build_shim as b
jars, spark = b.find_jars()
jar, test_jar, extra = b.jar_of(spark), b.test_jar_of(spark), b.resources(spark)
wanted = b.digest(b.sources("main", spark), extra, spark)
wanted_tests = b.digest(b.sources("test", spark), {"shim": wanted}, spark)
with tempfile.TemporaryDirectory() as new, tempfile.TemporaryDirectory() as old:
    b.compile_scala([pathlib.Path(sys.argv[1])], [str(jar), str(jars / "*")], pathlib.Path(new), [])
    for target, digest in (jar, wanted), (test_jar, wanted_tests):
        classes = pathlib.Path(old, target.stem)
        with zipfile.ZipFile(target) as archive:
            archive.extractall(classes)
        if target is jar:
            for file in pathlib.Path(new).rglob("*.class"):
                file.replace(classes / file.relative_to(new))
        b.write_jar(target, classes, {b._DIGEST_ENTRY: digest})
"""

_PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(enum.StrEnum):
    """What the tests of a mutant show."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NOT_COMPILED = "did not compile"
    NOT_RUN = "tests did not run"
    BROKEN_BEFORE = "tests fail without it"

    @property
    def is_killed(self) -> bool:
        return self in (Outcome.KILLED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Result:
    """The outcome of tests, how long they took, the first one that failed, and the end of their output."""

    outcome: Outcome
    seconds: float
    failed: str = ""
    output: str = ""


class Copy:
    """A copy of the files that git tracks in the checkout, and of what was built from them.

    Parameters
    ----------
    root
        An empty directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root / "checkout"
        self._backup = root / "built"
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        names = [name for name in tracked.stdout.split("\0") if (ROOT / name).is_file()]
        built = [str(path.relative_to(ROOT)) for pattern in _BUILT for path in ROOT.glob(pattern)]
        for name in (*names, *built):
            _copy(ROOT / name, self._root / name)
        # Of other entries, one may be the PySpark to test with.
        path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        self._environment = os.environ | {
            "HYPOTHESIS_PROFILE": "faults",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(
                [str(self._root), *(entry for entry in path if entry != str(ROOT))]
            ),
        }
        self._require_own_package()
        if self._compile():
            sys.exit("the checkout does not compile")
        self._built = [path for pattern in _BUILT for path in self._root.glob(pattern)]
        for file in self._built:
            _copy(file, self._backup / file.relative_to(self._root))

    def test(self, tests: Sequence[str]) -> Result:
        """Run tests."""
        begun = time.monotonic()
        code, output = self._run([*_PYTEST, *tests], LIMIT_SECONDS)
        failed = match[1] if (match := _FAILED.search(output)) else ""
        outcome = {0: Outcome.SURVIVED, 1: Outcome.KILLED, None: Outcome.TIMED_OUT}.get(code, Outcome.NOT_RUN)
        return Result(outcome, time.monotonic() - begun, failed, output[-4000:])

    def test_mutant(self, mutant: Mutant) -> Result:
        """Run the tests of a mutant with its change, which is undone."""
        file = self._root / mutant.path
        original, status = file.read_text(), file.stat()
        if original.count(mutant.old) != 1:
            return Result(Outcome.NOT_COMPILED, 0, output=f"{mutant.path} does not have {mutant.old!r} once")
        # Compiled modules of the original stay valid, and none of the changed one remains.
        self._environment["PYTHONDONTWRITEBYTECODE"] = "1"
        try:
            file.write_text(original.replace(mutant.old, mutant.new))
            if error := self._compile_error(mutant):
                return Result(Outcome.NOT_COMPILED, 0, output=error)
            return self.test(mutant.tests)
        finally:
            file.write_text(original)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            for path in self._built:
                _copy(self._backup / path.relative_to(self._root), path)
            del self._environment["PYTHONDONTWRITEBYTECODE"]

    def _compile_error(self, mutant: Mutant) -> str:
        if mutant.path.endswith(".scala"):
            # The compiler copies constants into the classes that use them.
            return self._compile(None if "final val" in mutant.new else mutant.path)
        try:
            ast.parse((self._root / mutant.path).read_text())
        except SyntaxError as error:
            return str(error)
        return ""

    def _compile(self, source: str | None = None) -> str:
        """Build the jars whose sources differ from theirs, and return the compiler's errors.

        With `source`, only its classes are compiled, and replaced in the jar.
        """
        build = ["jvm-shim/build_shim.py", "--tests"] if source is None else ["-c", _REPLACE_CLASSES, source]
        code, output = self._run([sys.executable, *build], LIMIT_SECONDS)
        return "" if code == 0 else output or "the compiler took too long"

    def _require_own_package(self) -> None:
        # The interpreter's packages may have an editable installation of a checkout.
        code = "import spark_statestore, tests; print(spark_statestore.__file__, tests.__file__)"
        _, output = self._run([sys.executable, "-c", code], 60)
        for file in output.split():
            if not Path(file).is_relative_to(self._root):
                sys.exit(f"tests of the copy {self._root} would import {output}")

    def _run(self, command: Sequence[str], limit: float) -> tuple[int | None, str]:
        """Run a command in the copy; return its exit status, None if it took too long, and its output."""
        # A file, since processes that the command leaves behind may keep a pipe open.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self._root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = None
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(limit)
            finally:
                # A mutant may be a process that does not end.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return code, output.read().decode(errors="replace")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
