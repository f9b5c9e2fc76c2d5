"""Compile the JVM shim against the jars of an installed PySpark.

PySpark ships the Scala compiler and everything that the shim compiles against, so a Java 17
runtime is all that is needed besides. Run as a script, or from the wheel's build hook:

    python jvm-shim/build_shim.py            the jar that the wheel ships
    python jvm-shim/build_shim.py --tests    also the jar that tests and benchmarks use
    python jvm-shim/build_shim.py --lint     compile both, every warning an error, write nothing
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SHIM = Path(__file__).resolve().parent
ROOT = SHIM.parent
PACKAGE = ROOT / "spark_statestore"
TEST_JAR = SHIM / "target" / "spark-statestore-tests.jar"
SUPPORTED_SPARK = ("4.3",)
OLDEST_JAVA = 17

_DIGEST_ENTRY = "META-INF/spark-statestore.digest"
_LINT = ["-Xlint", "-Werror", "-deprecation", "-feature", "-unchecked"]


def find_jars() -> tuple[Path, str]:
    """Directory of PySpark's jars, and the Spark version they are of."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        sys.exit("the shim is compiled against PySpark's jars: pip install 'pyspark==4.3.*'")
    jars = Path(spec.origin).parent / "jars"
    for jar in jars.glob("spark-core_2.13-*.jar"):
        version = jar.stem.removeprefix("spark-core_2.13-")
        minor = ".".join(version.split(".")[:2])
        if minor not in SUPPORTED_SPARK:
            sys.exit(
                f"the shim has sources for Spark {', '.join(SUPPORTED_SPARK)}, but PySpark {version} is "
                f"installed in {jars.parent}: pip install 'pyspark=={SUPPORTED_SPARK[-1]}.*'"
            )
        return jars, version
    sys.exit(
        f"{jars} has no Spark jars: this PySpark is an installation without Spark, such as pyspark-client"
    )


def find_java() -> str:
    """A Java runtime that is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        sys.exit(f"a Java {OLDEST_JAVA} runtime is needed: set JAVA_HOME, or put java on the PATH")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < OLDEST_JAVA:
        sys.exit(f"Java {OLDEST_JAVA} or newer is needed, but {java} says: {said.strip()}")
    return java


def package_version() -> str:
    """Version of the Python package, read without importing it."""
    text = (PACKAGE / "_version.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found is not None
    return found[1]


def option_table() -> str:
    """The option table as JSON, from the package's sources."""
    code = "from spark_statestore.options import as_json; print(as_json(), end='')"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"the option table could not be read:\n{run.stderr}")
    return run.stdout


def resources(spark: str) -> dict[str, str]:
    """What the jar carries besides classes."""
    minor = ".".join(spark.split(".")[:2])
    return {
        "spark-statestore.properties": f"version={package_version()}\nspark={minor}\n",
        "spark-statestore-options.json": option_table(),
    }


def sources(kind: str) -> list[Path]:
    """The Scala sources, in a fixed order."""
    return sorted((SHIM / "src" / kind / "scala").rglob("*.scala"))


def digest(files: list[Path], extra: dict[str, str], spark: str) -> str:
    """Names a jar's content: its sources, resources and the Spark it is compiled against."""
    told = hashlib.sha256(f"{spark}\n".encode())
    for file in files:
        told.update(f"{file.relative_to(SHIM).as_posix()}\n".encode() + file.read_bytes())
    for name, text in sorted(extra.items()):
        told.update(f"{name}\n{text}".encode())
    return told.hexdigest()


def is_current(jar: Path, wanted: str) -> bool:
    """Whether a jar was built from just this."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.read(_DIGEST_ENTRY).decode() == wanted
    except (OSError, KeyError, zipfile.BadZipFile):
        return False


def compile_scala(files: list[Path], classpath: list[str], target: Path, flags: list[str]) -> None:
    """Compile Scala sources into a directory."""
    path = os.pathsep.join(classpath)
    command = [find_java(), "-Xss8m", "-Xmx1g", "-cp", path, "scala.tools.nsc.Main"]
    command += ["-classpath", path, "-d", str(target), *flags, *map(str, files)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"scalac failed:\n{run.stdout}{run.stderr}")


def write_jar(jar: Path, classes: Path, extra: dict[str, str]) -> None:
    """Write a jar whose bytes depend on its content alone."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    entries = {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n\r\n"}
    entries |= {name: text.encode() for name, text in extra.items()}
    entries |= {f.relative_to(classes).as_posix(): f.read_bytes() for f in classes.rglob("*") if f.is_file()}
    handle, staging = tempfile.mkstemp(dir=jar.parent, suffix=".jar")
    os.close(handle)
    with zipfile.ZipFile(staging, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(entries, key=lambda n: (n != "META-INF/MANIFEST.MF", n)):
            archive.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), entries[name], zipfile.ZIP_DEFLATED
            )
    os.chmod(staging, 0o644)
    os.replace(staging, jar)


def build(*, tests: bool = False, lint: bool = False, force: bool = False) -> Path:
    """Build what is out of date; returns the shim's jar."""
    jars, spark = find_jars()
    minor = ".".join(spark.split(".")[:2])
    jar = PACKAGE / "jars" / f"spark-statestore-spark-{minor}.jar"
    extra = resources(spark)
    wanted = digest(sources("main"), extra, spark)
    classpath = [str(jars / "*")]
    flags = _LINT if lint else []
    with tempfile.TemporaryDirectory() as scratch:
        main_classes = Path(scratch, "main")
        main_classes.mkdir()
        if lint or force or not is_current(jar, wanted):
            print(f"compiling the shim for Spark {spark}", file=sys.stderr)
            compile_scala(sources("main"), classpath, main_classes, flags)
            if not lint:
                write_jar(jar, main_classes, extra | {_DIGEST_ENTRY: wanted})
        if tests or lint:
            wanted_tests = digest(sources("test"), {"shim": wanted}, spark)
            if lint or force or not is_current(TEST_JAR, wanted_tests):
                print("compiling the shim's tests", file=sys.stderr)
                test_classes = Path(scratch, "test")
                test_classes.mkdir()
                shim = str(main_classes if lint else jar)
                compile_scala(sources("test"), [*classpath, shim], test_classes, flags)
                if not lint:
                    write_jar(TEST_JAR, test_classes, {_DIGEST_ENTRY: wanted_tests})
    return jar


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Compile the JVM shim.")
    parser.add_argument("--tests", action="store_true", help="also the jar for tests and benchmarks")
    parser.add_argument("--lint", action="store_true", help="only compile, every warning an error")
    parser.add_argument("--force", action="store_true", help="also what is up to date")
    arguments = parser.parse_args()
    print(build(tests=arguments.tests, lint=arguments.lint, force=arguments.force))


if __name__ == "__main__":
    main()
